//! File tokens: the credentials with which an adapter reads the files that a delivery refers to, and adds those of a
//! message. A token is signed, and names a session, what it allows and its own end. Minted and verified by `auth`.
use crate::shared_secret::{SecretUnavailable, SharedSecret};
use turnway_core::id::{Principal, SessionKey, UserId};
use turnway_core::planted::{Planted, planted};
use turnway_core::private::Private;
use turnway_core::time::Millis;

/// Beginning of every token, by which people and scanners of leaked secrets recognise it.
const PREFIX: &str = "twfile_";
/// Prefix of the signed text of a token that reads: no other token is signed with it.
const SIGNED_READ: &str = "file-token:1:";
/// The same of a token that adds files.
const SIGNED_ADD: &str = "file-token-add:1:";
/// Above this length a text is no token: a tenant, a session and a user have at most some 400 bytes, in Base64 some 540.
const TOKEN_BYTES_MAX: usize = 1024;

/// The right that a token gives: to files of one session, until a time of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileScope {
    pub key: SessionKey,
    pub right: FileRight,
    pub ends: Millis,
}

/// The use of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileRight {
    /// To read files.
    Read,
    /// To add files, as this user.
    Add(UserId),
}

/// Mints and verifies the tokens of a node's store: every node of the store accepts them.
#[derive(Clone, Debug)]
pub struct FileTokens(SharedSecret);

// === impl FileScope ===

impl FileScope {
    /// Returns the principal as whom an adapter acts. It may see every session of the tenant, because the session may be
    /// another user's; the caller limits it to the session of the token.
    pub fn principal(&self) -> Principal {
        let tenant = self.key.tenant.clone();
        match &self.right {
            FileRight::Read => {
                let user = UserId::parse("turnway:files").unwrap_or_else(|_| UserId::local());
                Principal { tenant, user, operator: true, writes: false }
            }
            FileRight::Add(user) => Principal { tenant, user: user.clone(), operator: true, writes: true },
        }
    }

    /// Returns whether the token is one for adding files.
    pub fn adds(&self) -> bool {
        match self.right {
            FileRight::Read => planted(Planted::FileTokenWrites),
            FileRight::Add(_) => true,
        }
    }
}

// === impl FileTokens ===

impl FileTokens {
    /// Creates the tokens with a secret.
    pub fn new(secret: SharedSecret) -> Self {
        Self(secret)
    }

    /// Returns the token that a header `Authorization` shows, if it claims to be one.
    pub fn is_token(shown: &str) -> bool {
        shown.starts_with(PREFIX)
    }

    /// Reads the secret, which minting and verification need.
    pub async fn prepare(&self) -> Result<(), SecretUnavailable> {
        self.0.key().await.map(drop)
    }

    /// Mints a token; `None` as long as the secret was not read.
    pub fn mint(&self, scope: &FileScope) -> Option<Private<String>> {
        let FileScope { key: SessionKey { tenant, session }, right, ends } = scope;
        let secret = self.0.known_key()?;
        let signed = match right {
            FileRight::Read => SharedSecret::sign(secret, SIGNED_READ, &(tenant, session, ends)),
            FileRight::Add(user) => SharedSecret::sign(secret, SIGNED_ADD, &(tenant, session, ends, user)),
        };
        Some(Private(format!("{PREFIX}{signed}")))
    }

    /// Returns what a token opens, or `None` if it was not minted here or has ended. The secret must have been read.
    pub fn verify(&self, shown: &str, now: Millis) -> Option<FileScope> {
        let shown = shown.strip_prefix(PREFIX).filter(|shown| shown.len() <= TOKEN_BYTES_MAX)?;
        let scope = self.verify_read(shown).or_else(|| self.verify_add(shown))?;
        let is_over = now >= scope.ends && !planted(Planted::FileTokenEndless);
        (!is_over).then_some(scope)
    }

    fn verify_read(&self, shown: &str) -> Option<FileScope> {
        let (tenant, session, ends) = self.0.verify(SIGNED_READ, shown)?;
        Some(FileScope { key: SessionKey { tenant, session }, right: FileRight::Read, ends })
    }

    fn verify_add(&self, shown: &str) -> Option<FileScope> {
        let (tenant, session, ends, user) = self.0.verify(SIGNED_ADD, shown)?;
        Some(FileScope { key: SessionKey { tenant, session }, right: FileRight::Add(user), ends })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::registers::in_memory;
    use turnway_core::id::{SessionId, TenantId};

    fn key() -> SessionKey {
        SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") }
    }

    /// Covers: PR-24, S-06.
    #[tokio::test]
    async fn file_token_opens_one_session_until_its_end() {
        let tokens = FileTokens::new(SharedSecret::new(None, in_memory(), "files"));
        let scope = FileScope { key: key(), right: FileRight::Read, ends: Millis(100) };
        assert!(tokens.mint(&scope).is_none(), "before the secret is read");
        tokens.prepare().await.expect("the secret");
        let token = tokens.mint(&scope).expect("a token");
        assert_eq!(tokens.verify(token.reveal(), Millis(99)), Some(scope.clone()));
        assert_eq!(tokens.verify(token.reveal(), Millis(100)), None, "at its end");
        for at in 0..token.reveal().len() {
            let mut other = token.reveal().as_bytes().to_vec();
            other[at] = if other[at] == b'A' { b'Q' } else { b'A' };
            assert_eq!(tokens.verify(&String::from_utf8(other).expect("ASCII"), Millis(1)), None, "byte {at}");
        }
        assert!(!scope.principal().writes, "a file token reads");
        assert!(!format!("{token:?} {tokens:?}").contains("twfile_"), "debug output shows no token");
    }

    /// Covers: PR-24, S-06.
    #[tokio::test]
    async fn upload_token_adds_files_as_its_user_until_its_end() {
        let tokens = FileTokens::new(SharedSecret::new(None, in_memory(), "files"));
        tokens.prepare().await.expect("the secret");
        let user = UserId::parse(&"u".repeat(255)).expect("a user");
        let scope = FileScope { key: key(), right: FileRight::Add(user.clone()), ends: Millis(100) };
        let token = tokens.mint(&scope).expect("a token");
        assert_eq!(tokens.verify(token.reveal(), Millis(99)), Some(scope.clone()));
        assert_eq!(tokens.verify(token.reveal(), Millis(100)), None, "at its end");
        assert!(scope.adds() && scope.principal().writes && scope.principal().user == user);
        let reading = FileScope { right: FileRight::Read, ..scope };
        assert!(!reading.adds(), "a token of a delivery adds nothing");
        assert_ne!(tokens.mint(&reading).expect("a token").reveal(), token.reveal());
    }
}
