//! One call of one function, and the errors it can end with. Used by all ops of the Redis store.
use crate::redis::Missed;
use crate::redis::refusal::{Complaint, complaint};
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
pub(super) struct Call(Cmd);

/// The reason why an op has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The call was not performed.
    NotDone,
    /// The call may have been performed.
    Doubt,
    /// The call was not performed: the server has no memory left.
    Full,
    /// The call was not performed: the server accepts no writes.
    ReadOnly,
    /// The call was not performed: the user lacks the right.
    Forbidden,
}

// === impl Call ===

impl Call {
    /// Creates a call of a function that may write.
    pub(super) fn to<K: ToRedisArgs, const N: usize>(function: &str, keys: [K; N]) -> Self {
        Self::of("FCALL", function, &keys)
    }

    /// Creates a call of a function that only reads.
    pub(super) fn look<K: ToRedisArgs, const N: usize>(function: &str, keys: [K; N]) -> Self {
        Self::of("FCALL_RO", function, &keys)
    }

    fn of<K: ToRedisArgs>(command: &str, function: &str, keys: &[K]) -> Self {
        debug_assert!(lie_together(keys), "keys lie in several slots: {:?}", keys.to_redis_args());
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
    pub(super) fn name(mut self, name: u128) -> Self {
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
fn lie_together<K: ToRedisArgs>(keys: &[K]) -> bool {
    let names = keys.to_redis_args();
    let mut slots = names.iter().map(|name| key::slot(&String::from_utf8_lossy(name)));
    let first = slots.next();
    slots.all(|slot| Some(slot) == first)
}

// === impl Trouble ===

impl From<&Missed> for Trouble {
    fn from(missed: &Missed) -> Self {
        match missed {
            Missed::NotSent => Self::NotDone,
            Missed::Unanswered => Self::Doubt,
            Missed::Refused { code, detail } => refusal(code, detail),
        }
    }
}

impl From<Trouble> for StoreError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::NotDone | Trouble::Full | Trouble::ReadOnly | Trouble::Forbidden => Self::Unavailable,
            Trouble::Doubt => Self::Unknown,
        }
    }
}

/// Returns the meaning of a server's refusal. A call that is refused before it begins was not performed; a function
/// that failed midway may have performed a part.
fn refusal(code: &str, detail: &str) -> Trouble {
    match code {
        "NOPERM" if is_before_first_write(detail) => Trouble::Forbidden,
        _ if detail.contains("script:") => Trouble::Doubt,
        "BUSY" | "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" => Trouble::NotDone,
        _ if is_unknown_function(code, detail) => Trouble::NotDone,
        _ => match complaint(code, detail) {
            Some(Complaint::Full) => Trouble::Full,
            Some(Complaint::ReadOnly) => Trouble::ReadOnly,
            Some(Complaint::Forbidden) => Trouble::Forbidden,
            None => Trouble::Doubt,
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
            Trouble::from(&Missed::Refused { code: code.into(), detail: detail.into() })
        };
        assert_eq!(refused("LOADING", "Redis is loading the dataset in memory"), Trouble::ReadOnly);
        assert_eq!(refused("NOPERM", "User n has no permissions to run 'fcall'"), Trouble::Forbidden);
        assert_eq!(refused("ERR", "unknown command 'FCALL', with args"), Trouble::Forbidden);
        assert_eq!(refused("ERR", "Function not found"), Trouble::NotDone);
        assert_eq!(refused("OOM", "allow-oom flag is not set on the function"), Trouble::Full);
        let inside = "User n has no permissions to run the 'hset' command script: turnway1_accept, on @user_function:9.";
        assert_eq!(refused("NOPERM", inside), Trouble::Doubt);
        assert_eq!(refused("NOPERM", &inside.replace("hset", "xadd")), Trouble::Forbidden);
        assert_eq!(
            refused("NOPERM", &inside.replace("hset", "xadd").replace("accept", "append")),
            Trouble::Doubt
        );
        assert_eq!(refused("ERR", "anything else"), Trouble::Doubt);
    }

    #[test]
    #[should_panic(expected = "one slot only")]
    fn call_across_two_slots_is_a_bug() {
        let _ = Call::to("append", ["own:{a/s}", "log:{a/t}"]);
    }
}
