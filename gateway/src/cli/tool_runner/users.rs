//! Resolves `run_as`, the system user that a program runs as. Users are looked up in `/etc/passwd` and
//! `/etc/group`, or given as numbers.
use rustix::process::{getegid, geteuid};

/// A system user with a single group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunAs {
    /// The text that named the user.
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Id of `nobody`, if `/etc/passwd` has no such user.
const NOBODY: u32 = 65_534;

// === impl RunAs ===

impl RunAs {
    /// Parses `USER`, `USER:GROUP`, or the same as numbers; numbers need not be in `/etc/passwd` if both are
    /// given.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let file = |path| std::fs::read_to_string(path).unwrap_or_default();
        let found = resolve(text, &file("/etc/passwd"), &file("/etc/group"))?;
        let is_own = found.uid == geteuid().as_raw() && found.gid == getegid().as_raw();
        if is_root() || is_own {
            Ok(found)
        } else {
            Err("only a runner that is root may run programs as another user".to_owned())
        }
    }

    /// Returns the unprivileged user `nobody`.
    pub(super) fn nobody() -> Self {
        let known = Self::parse("nobody").ok();
        known.unwrap_or_else(|| Self { name: "nobody".to_owned(), uid: NOBODY, gid: NOBODY })
    }
}

/// Returns whether this process is root.
pub(super) fn is_root() -> bool {
    geteuid().is_root()
}

fn resolve(text: &str, passwd: &str, group: &str) -> Result<RunAs, String> {
    let (user, of_group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let known = passwd_row(passwd, user).and_then(|row| Some((row.get(2)?.parse().ok()?, row.get(3)?.parse().ok()?)));
    let (uid, own_gid) = match (known, user.parse::<u32>().ok()) {
        (Some((uid, gid)), _) => (uid, Some(gid)),
        (None, Some(uid)) => (uid, gid_of_uid(passwd, uid)),
        (None, None) => return Err(format!("there is no user {user:?} in /etc/passwd")),
    };
    let gid = match of_group {
        None => own_gid.ok_or("expected USER:GROUP: this user's group is not known".to_owned())?,
        Some(name) => {
            let known = passwd_row(group, name).and_then(|row| row.get(2)?.parse().ok());
            let number = || name.parse().ok();
            known.or_else(number).ok_or_else(|| format!("there is no group {name:?} in /etc/group"))?
        }
    };
    Ok(RunAs { name: text.to_owned(), uid, gid })
}

fn passwd_row<'a>(file: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let rows = file.lines().map(|line| line.split(':').collect::<Vec<_>>());
    rows.into_iter().find(|row| !name.is_empty() && row.first() == Some(&name))
}

fn gid_of_uid(passwd: &str, uid: u32) -> Option<u32> {
    let rows = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    rows.into_iter().find(|row| row.get(2).is_some_and(|field| field.parse() == Ok(uid)))?.get(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_found_by_name_or_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\ntools:x:990:980::/srv:/bin/false\nbroken\n";
        let group = "root:x:0:\ntools:x:980:\nbuild:x:77:tools\n";
        let ids = |text: &str| resolve(text, passwd, group).map(|found| (found.uid, found.gid));
        assert_eq!(ids("tools"), Ok((990, 980)));
        assert_eq!(ids("tools:build"), Ok((990, 77)));
        assert_eq!(ids("990"), Ok((990, 980)));
        assert_eq!(ids("4000:4001"), Ok((4000, 4001)));
        for bad in ["", "nemo", "broken", "4000", "tools:nemo", "tools:", ":tools", "-1"] {
            assert!(ids(bad).is_err(), "{bad}");
        }
    }
}
