//! One call of one function, and the errors it can end with. Used by all ops of the Redis store.
use crate::redis::RedisCommandError;
use crate::redis::server_error::{ServerCondition, classify};
use crate::store::redis::key;
use ::redis::{Cmd, RedisWrite, ToRedisArgs};
use turnway_core::store::StoreError;

/// Largest number that is passed: the functions count in doubles.
const NUMBER_MAX: u64 = (1 << 53) - 1;
/// Arguments of a usual call, and their bytes, so that the buffers are allocated once.
const ARGS: usize = 24;
const ARGS_BYTES: usize = 1024;

/// A function call with its keys and arguments, encoded at once as it will be sent.
#[derive(Clone, Debug)]
pub(super) struct RedisCall(Cmd);

/// The reason why an op has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RedisCallError {
    /// The call was not performed.
    NotPerformed,
    /// The call may have been performed.
    Unknown,
    /// The call was not performed: the server has no memory left.
    Full,
    /// The call was not performed: the server accepts no writes.
    ReadOnly,
    /// The call was not performed: the user lacks the right.
    Forbidden,
}

// === impl RedisCall ===

impl RedisCall {
    /// Creates a call of a function that may write.
    pub(super) fn write<K: ToRedisArgs, const N: usize>(function: &str, keys: [K; N]) -> Self {
        Self::new("FCALL", function, &keys)
    }

    /// Creates a call of a function that only reads.
    pub(super) fn read_only<K: ToRedisArgs, const N: usize>(function: &str, keys: [K; N]) -> Self {
        Self::new("FCALL_RO", function, &keys)
    }

    fn new<K: ToRedisArgs>(command: &str, function: &str, keys: &[K]) -> Self {
        debug_assert!(in_one_slot(keys), "keys lie in several slots: {:?}", keys.to_redis_args());
        let mut call = Cmd::with_capacity(ARGS, ARGS_BYTES);
        call.arg(command);
        call.write_arg_fmt(format_args!("turnway1_{function}"));
        call.arg(keys.len());
        call.arg(keys);
        Self(call)
    }

    pub(super) fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }
    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.write_arg(bytes);
        self
    }
    pub(super) fn number(mut self, number: u64) -> Self {
        self.0.write_arg_fmt(number.min(NUMBER_MAX));
        self
    }
    pub(super) fn flag(self, flag: bool) -> Self {
        self.text(if flag { "1" } else { "0" })
    }
    /// Appends 128 random bits, in hexadecimal.
    pub(super) fn hex_id(mut self, name: u128) -> Self {
        self.0.write_arg_fmt(format_args!("{name:032x}"));
        self
    }

    pub(super) fn command(&self) -> &Cmd {
        &self.0
    }

    pub(super) fn into_command(self) -> Cmd {
        self.0
    }
}

/// Returns whether all keys are in one slot.
fn in_one_slot<K: ToRedisArgs>(keys: &[K]) -> bool {
    let names = keys.to_redis_args();
    let mut slots = names.iter().map(|name| key::slot(&String::from_utf8_lossy(name)));
    let first = slots.next();
    slots.all(|slot| Some(slot) == first)
}

// === impl RedisCallError ===

impl From<&RedisCommandError> for RedisCallError {
    fn from(missed: &RedisCommandError) -> Self {
        match missed {
            RedisCommandError::NotSent => Self::NotPerformed,
            RedisCommandError::Unanswered => Self::Unknown,
            RedisCommandError::Refused { code, detail } => classify_refusal(code, detail),
        }
    }
}

impl From<RedisCallError> for StoreError {
    fn from(error: RedisCallError) -> Self {
        match error {
            RedisCallError::NotPerformed
            | RedisCallError::Full
            | RedisCallError::ReadOnly
            | RedisCallError::Forbidden => Self::Unavailable,
            RedisCallError::Unknown => Self::Unknown,
        }
    }
}

/// Returns the meaning of a server's refusal. A call that is refused before it begins was not performed; a function
/// that failed midway may have performed a part.
fn classify_refusal(code: &str, detail: &str) -> RedisCallError {
    match code {
        "NOPERM" if is_before_first_write(detail) => RedisCallError::Forbidden,
        _ if detail.contains("script:") => RedisCallError::Unknown,
        "BUSY" | "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" => RedisCallError::NotPerformed,
        _ if is_unknown_function(code, detail) => RedisCallError::NotPerformed,
        _ => match classify(code, detail) {
            Some(ServerCondition::Full) => RedisCallError::Full,
            Some(ServerCondition::ReadOnly) => RedisCallError::ReadOnly,
            Some(ServerCondition::Forbidden) => RedisCallError::Forbidden,
            None => RedisCallError::Unknown,
        },
    }
}

/// Returns whether a function that accepts an input was refused a command before its first write. Clients that cannot
/// resend such an input would otherwise wait for as long as the right is missing.
fn is_before_first_write(detail: &str) -> bool {
    let takes = ["script: turnway1_accept", "script: turnway1_control"];
    let commands = ["'hmget'", "'hget'", "'hexists'", "'xlen'", "'xrange'", "'time'", "'xadd'"];
    let has = |words: &[&str]| words.iter().any(|word| detail.contains(word));
    has(&takes) && has(&commands)
}

/// Returns whether the server lacks the function. Functions are part of the data: a wiped or exchanged server has
/// none.
pub(super) fn is_unknown_function(code: &str, detail: &str) -> bool {
    code == "ERR" && detail.starts_with("Function not found")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_before_execution_counts_as_not_done() {
        let refused = |code: &str, detail: &str| {
            RedisCallError::from(&RedisCommandError::Refused { code: code.into(), detail: detail.into() })
        };
        assert_eq!(refused("LOADING", "Redis is loading the dataset in memory"), RedisCallError::ReadOnly);
        assert_eq!(refused("NOPERM", "User n has no permissions to run 'fcall'"), RedisCallError::Forbidden);
        assert_eq!(refused("ERR", "unknown command 'FCALL', with args"), RedisCallError::Forbidden);
        assert_eq!(refused("ERR", "Function not found"), RedisCallError::NotPerformed);
        assert_eq!(refused("OOM", "allow-oom flag is not set on the function"), RedisCallError::Full);
        let inside =
            "User n has no permissions to run the 'hset' command script: turnway1_accept, on @user_function:9.";
        assert_eq!(refused("NOPERM", inside), RedisCallError::Unknown);
        assert_eq!(refused("NOPERM", &inside.replace("hset", "xadd")), RedisCallError::Forbidden);
        assert_eq!(
            refused("NOPERM", &inside.replace("hset", "xadd").replace("accept", "append")),
            RedisCallError::Unknown
        );
        assert_eq!(refused("ERR", "anything else"), RedisCallError::Unknown);
    }

    #[test]
    #[should_panic(expected = "keys lie in several slots")]
    fn call_across_two_slots_is_a_bug() {
        let _ = RedisCall::write("append", ["own:{a/s}", "log:{a/t}"]);
    }
}
