//! Takeovers of sessions whose owner was killed, by the builds of both owners. The owners are read from the store, as
//! in the rest of the verdict, and never from a node.
use std::collections::BTreeMap;
use std::fmt;
use turnway_tests::real::redis::Redis;

/// The build that a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Build {
    /// The build of an earlier commit.
    Earlier,
    /// The build under test.
    Present,
}

/// Owner of a session, as the store has it.
struct StoredOwner {
    /// Node id, which is a new one after each start; empty while nobody owns the session.
    node: String,
    epoch: u64,
}

/// A session whose owner was killed.
struct Orphan {
    build: Build,
    epoch: u64,
}

/// The sessions that wait for a new owner, and the takeovers so far.
#[derive(Default)]
pub(crate) struct Takeovers {
    /// Build of each node id.
    builds: BTreeMap<String, Build>,
    /// Sessions without a living owner, by their key in the store.
    orphans: BTreeMap<String, Orphan>,
    /// Number of takeovers, by the builds of the killed owner and of the next one.
    counts: BTreeMap<(Build, Build), usize>,
}

// === impl Takeovers ===

impl Takeovers {
    /// Records a node that has started.
    pub(crate) fn node_started(&mut self, id: &str, build: Build) {
        self.builds.insert(id.to_owned(), build);
    }

    /// Records a node that was killed. It must be called before that node's sessions are expected to have a new owner.
    pub(crate) fn node_killed(&mut self, redis: &Redis, id: &str) {
        let owners = stored_owners(redis);
        self.count_claimed(&owners);
        let build = self.builds[id];
        let left = owners.into_iter().filter(|(_, owner)| owner.node == id);
        self.orphans.extend(left.map(|(session, owner)| (session, Orphan { build, epoch: owner.epoch })));
    }

    /// Counts the takeovers since the last look at the store.
    pub(crate) fn update(&mut self, redis: &Redis) {
        self.count_claimed(&stored_owners(redis));
    }

    /// Returns the number of takeovers from a build by a build.
    pub(crate) fn count(&self, from: Build, by: Build) -> usize {
        self.counts.get(&(from, by)).copied().unwrap_or_default()
    }

    /// A session that had two new owners between two looks counts for the second. It is looked at after each fault, and
    /// no owner lets a session go without one.
    fn count_claimed(&mut self, owners: &BTreeMap<String, StoredOwner>) {
        self.orphans.retain(|session, orphan| {
            let Some(owner) = owners.get(session) else { return true };
            if owner.epoch <= orphan.epoch {
                return true;
            }
            if let Some(by) = self.builds.get(&owner.node) {
                *self.counts.entry((orphan.build, *by)).or_default() += 1;
            }
            false
        });
    }
}

impl fmt::Display for Takeovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.counts.iter().map(|((from, by), count)| format!("{from:?} to {by:?} {count}"));
        write!(f, "{}", all.collect::<Vec<_>>().join(" / "))
    }
}

/// Returns the owner of each session, by the session's key in the store.
fn stored_owners(redis: &Redis) -> BTreeMap<String, StoredOwner> {
    let keys: Vec<String> = redis.command(&["KEYS", "own:*"]);
    let mut read = redis::pipe();
    for key in &keys {
        read.cmd("HMGET").arg(key).arg(&["n", "e"]);
    }
    let found: Vec<(Option<String>, Option<u64>)> = read.query(&mut redis.connection()).expect("the heads of sessions");
    let owners = found
        .into_iter()
        .map(|(node, epoch)| StoredOwner { node: node.unwrap_or_default(), epoch: epoch.unwrap_or_default() });
    keys.into_iter().zip(owners).collect()
}
