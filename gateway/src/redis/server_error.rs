//! Classifies errors of a Redis server into the kinds that an operator can act on. Used by `store::redis` and `cli`.

/// A kind of error that lasts until an operator acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerCondition {
    /// The server has no free memory.
    Full,
    /// The server accepts no writes.
    ReadOnly,
    /// The server does not allow this user the command, key or channel, or does not have the command.
    Forbidden,
}

/// Returns the kind of an error, given its first word and the rest; `None` if the error is not about the server's
/// condition.
pub fn classify(code: &str, detail: &str) -> Option<ServerCondition> {
    match code {
        "OOM" => Some(ServerCondition::Full),
        "READONLY" | "MISCONF" | "NOREPLICAS" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" => {
            Some(ServerCondition::ReadOnly)
        }
        "NOPERM" | "NOAUTH" | "WRONGPASS" | "DENIED" => Some(ServerCondition::Forbidden),
        "ERR" if detail.starts_with("unknown command") || detail.contains("Unknown Redis command") => {
            Some(ServerCondition::Forbidden)
        }
        // A function asked for the right to a command that the server does not have.
        "ERR" if detail.contains("Invalid command passed to redis.acl_check_cmd") => Some(ServerCondition::Forbidden),
        // A command called within a function puts its own error first.
        "ERR" if detail.contains("NOPERM") || detail.contains("has no permissions") => Some(ServerCondition::Forbidden),
        // The wording of Redis 7.0 for a command or a key within a function.
        "ERR" if detail.contains("user executing the script can't") => Some(ServerCondition::Forbidden),
        "ERR" if detail.contains("invalid username-password") => Some(ServerCondition::Forbidden),
        _ => None,
    }
}

/// Returns advice to an operator about an error.
pub fn advice(code: &str) -> &'static str {
    match code {
        "OOM" => "raise `maxmemory` of Redis, or free memory there",
        "MISCONF" => "Redis cannot write its own files: check its disk and its log",
        "READONLY" => "this Redis is a replica: set store.url to the primary, or to the Sentinels",
        "NOREPLICAS" => "too few replicas are connected: see `min-replicas-to-write`",
        "LOADING" => "Redis is still loading its data: wait until it is done",
        "MASTERDOWN" => "this Redis is a replica without its primary: check the primary",
        "WRONGPASS" | "NOAUTH" => "check user and password of store.url, and store.password_file",
        "NOPERM" => "give the user of store.url the rights of deploy/redis-users.acl",
        _ => {
            "give the user of store.url the rights of deploy/redis-users.acl; a server without a command cannot be used"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_refusals_are_classified_by_error_text() {
        let cases = [
            ("OOM", "command not allowed when used memory > 'maxmemory'.", Some(ServerCondition::Full)),
            ("READONLY", "You can't write against a read only replica.", Some(ServerCondition::ReadOnly)),
            ("MISCONF", "Errors writing to the AOF file: No space left on device", Some(ServerCondition::ReadOnly)),
            ("NOREPLICAS", "Not enough good replicas to write.", Some(ServerCondition::ReadOnly)),
            ("LOADING", "Redis is loading the dataset in memory", Some(ServerCondition::ReadOnly)),
            ("MASTERDOWN", "Link with MASTER is down", Some(ServerCondition::ReadOnly)),
            ("NOPERM", "User app has no permissions to run the 'fcall' command", Some(ServerCondition::Forbidden)),
            ("NOAUTH", "Authentication required.", Some(ServerCondition::Forbidden)),
            ("WRONGPASS", "invalid username-password pair or user is disabled.", Some(ServerCondition::Forbidden)),
            ("ERR", "unknown command 'FCALL', with args beginning with: ", Some(ServerCondition::Forbidden)),
            (
                "ERR",
                "The user executing the script can't run this command or subcommand script: f, on @user_function:9.",
                Some(ServerCondition::Forbidden),
            ),
            (
                "ERR",
                "Invalid command passed to redis.acl_check_cmd() script: f, on @user_function:9.",
                Some(ServerCondition::Forbidden),
            ),
            ("NOPERM", "this user lacks the right to a command of this function", Some(ServerCondition::Forbidden)),
            ("ERR", "Function not found", None),
            ("WRONGTYPE", "Operation against a key holding the wrong kind of value", None),
        ];
        for (code, detail, expected) in cases {
            assert_eq!(classify(code, detail), expected, "{code} {detail}");
            assert!(!advice(code).is_empty());
        }
    }
}
