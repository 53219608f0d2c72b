//! One call of one function, and what became of it.
use crate::redis::Missed;
use crate::store::redis::key;
use ::redis::{Cmd, cmd};
use turnway_core::store::StoreError;

/// No number of ours is greater: the functions count in doubles.
const NUMBER_MAX: u64 = (1 << 53) - 1;

/// A function, the keys it touches, and what it is told.
#[derive(Clone, Debug)]
pub(super) struct Call {
    function: String,
    reads: bool,
    keys: Vec<String>,
    args: Vec<Vec<u8>>,
}

/// Why an op has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It did not happen.
    NotDone,
    /// It may have happened.
    Doubt,
    /// It did not happen: the server has no room.
    Full,
}

// === impl Call ===

impl Call {
    /// One that may change something.
    pub(super) fn to(function: &str, keys: impl IntoIterator<Item = String>) -> Self {
        let call = Self {
            function: format!("turnway1_{function}"),
            reads: false,
            keys: keys.into_iter().collect(),
            args: Vec::new(),
        };
        let mut slots = call.keys.iter().map(|name| key::slot(name));
        let first = slots.next();
        debug_assert!(slots.all(|slot| Some(slot) == first), "one slot only: {:?}", call.keys);
        call
    }

    /// One that only looks.
    pub(super) fn look(function: &str, keys: impl IntoIterator<Item = String>) -> Self {
        Self { reads: true, ..Self::to(function, keys) }
    }

    pub(super) fn text(mut self, text: &str) -> Self {
        self.args.push(text.as_bytes().to_vec());
        self
    }
    pub(super) fn bytes(mut self, bytes: Vec<u8>) -> Self {
        self.args.push(bytes);
        self
    }
    pub(super) fn number(self, number: u64) -> Self {
        self.bytes(number.min(NUMBER_MAX).to_string().into_bytes())
    }
    pub(super) fn flag(self, flag: bool) -> Self {
        self.text(if flag { "1" } else { "0" })
    }
    /// 128 random bits.
    pub(super) fn name(self, name: u128) -> Self {
        self.bytes(format!("{name:032x}").into_bytes())
    }

    pub(super) fn command(&self) -> Cmd {
        let mut command = cmd(if self.reads { "FCALL_RO" } else { "FCALL" });
        command.arg(&self.function).arg(self.keys.len()).arg(&self.keys).arg(&self.args);
        command
    }
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
            Trouble::NotDone | Trouble::Full => Self::Unavailable,
            Trouble::Doubt => Self::Unknown,
        }
    }
}

/// What a server refuses before it begins did not happen. A function that failed on its way may have
/// done a part.
fn refusal(code: &str, detail: &str) -> Trouble {
    match code {
        _ if detail.contains("script:") => Trouble::Doubt,
        "OOM" => Trouble::Full,
        "LOADING" | "MASTERDOWN" | "MISCONF" | "NOREPLICAS" | "READONLY" | "NOPERM" | "NOAUTH"
        | "WRONGPASS" | "BUSY" | "CLUSTERDOWN" | "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" => {
            Trouble::NotDone
        }
        _ if is_unknown_function(code, detail) => Trouble::NotDone,
        _ => Trouble::Doubt,
    }
}

/// Functions are part of the data: a wiped or exchanged server has none.
pub(super) fn is_unknown_function(code: &str, detail: &str) -> bool {
    code == "ERR" && detail.starts_with("Function not found")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_refuses_at_its_door_did_not_happen() {
        let refused = |code: &str, detail: &str| {
            Trouble::from(&Missed::Refused { code: code.into(), detail: detail.into() })
        };
        assert_eq!(refused("LOADING", "Redis is loading the dataset in memory"), Trouble::NotDone);
        assert_eq!(refused("ERR", "Function not found"), Trouble::NotDone);
        assert_eq!(refused("OOM", "allow-oom flag is not set on the function"), Trouble::Full);
        let inside = "User n has no permissions to run the 'xadd' command script: turnway1_accept, on @user_function:9.";
        assert_eq!(refused("NOPERM", inside), Trouble::Doubt);
        assert_eq!(refused("ERR", "anything else"), Trouble::Doubt);
    }

    #[test]
    #[should_panic(expected = "one slot only")]
    fn a_call_that_needs_two_slots_is_a_bug() {
        let _ = Call::to("append", ["own:{a/s}".to_owned(), "log:{a/t}".to_owned()]);
    }
}
