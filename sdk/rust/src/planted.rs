//! Planted bugs of the client: mistakes that a named test has to detect. They exist only with the feature `planted`,
//! which no product build has; without it [`planted`] is `false` and the compiler removes every trace.

macro_rules! define_planted {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A deliberate mistake.
        #[derive(Clone, Copy, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "they stand in one list with those of the node")]
                pub(crate) enum Planted {
            $($(#[$doc])* $name,)*
        }

        /// The names of all planted bugs of the client, by which `TURNWAY_PLANTED` selects one.
        #[cfg(feature = "planted")]
        pub const PLANTED: &[&str] = &[$(stringify!($name),)*];
        #[cfg(feature = "planted")]
        const ALL: &[Planted] = &[$(Planted::$name,)*];
    };
}

define_planted! {
    /// The delay before the next attempt grows without bound.
    SdkBackoffUncapped,
    /// A connection that was stable for long does not reset the delay.
    SdkFailuresKept,
    /// The gateway's retry delay is ignored.
    SdkRetryAfterIgnored,
    /// A temporarily refused request is repeated forever.
    SdkRetriesForEver,
    /// Missing text is requested again forever.
    SdkRepairsForEver,
    /// A resume omits the epoch of its position: a store that lost facts is not detected.
    SdkResumesWithoutEpoch,
    /// A session may have any number of unfinished inputs.
    SdkInputsUnbounded,
    /// A bookmark omits the unfinished inputs, which are lost with the process.
    SdkBookmarkForgetsInputs,
    /// A cancellation without a run id is repeated on the next connection, where it stops another turn.
    SdkCancelRepeated,
    /// The text of one run is not bounded.
    SdkTextUnbounded,
    /// `hello` contains everything to resume, however long, so that the gateway closes the connection.
    SdkHelloOverfull,
    /// A rate-limited client reconnects at once.
    SdkHurriesBack,
    /// All clients of a draining node leave at the same moment.
    SdkLeavesAtOnce,
    /// A token set before `welcome` is not sent on that connection.
    SdkTokenStale,
    /// Ends of runs are remembered without bound.
    SdkEndsUnbounded,
    /// An adapter saves an offset when it has read the events before it: a crash loses those without an answer.
    SdkOffsetSavedEarly,
    /// An adapter reports an error that proves nothing as not sent: the gateway sends the part once more.
    SdkUnknownIsNotSent,
    /// An adapter performs an order that is repeated while it is in progress: people read the part twice.
    SdkOrderPerformedTwice,
    /// An adapter sends an event before the answer to the one before it: a refused one is overtaken.
    SdkEventsOvertake,
    /// An adapter gives up an event that was refused for a passing reason.
    SdkEventGivenUp,
    /// An adapter takes any number of orders.
    SdkOrdersUnbounded,
}

#[cfg(feature = "planted")]
mod active {
    use super::{ALL, PLANTED, Planted};
    use std::sync::OnceLock;

    static CHOSEN: OnceLock<Option<Planted>> = OnceLock::new();

    /// Returns whether this bug is planted in this process. The choice is read once; names of other crates' bugs
    /// select none.
    pub(crate) fn planted(bug: Planted) -> bool {
        let chosen = || {
            let name = std::env::var("TURNWAY_PLANTED").ok()?;
            PLANTED.iter().zip(ALL).find(|(known, _)| **known == name).map(|(_, bug)| *bug)
        };
        *CHOSEN.get_or_init(chosen) == Some(bug)
    }
}

#[cfg(feature = "planted")]
pub(crate) use active::planted;

/// Returns whether this bug is planted: never in a product build.
#[cfg(not(feature = "planted"))]
pub(crate) const fn planted(_: Planted) -> bool {
    false
}
