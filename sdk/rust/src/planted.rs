//! Planted bugs of the client: mistakes somebody could make, of which one named test has to go red. They exist only with the
//! feature `planted`, which no build of a product has; else [`planted`] is `false` and the compiler drops every trace.

macro_rules! define_planted {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A mistake somebody could make.
        #[derive(Clone, Copy, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "they stand in one list with those of the node")]
                pub(crate) enum Planted {
            $($(#[$doc])* $name,)*
        }

        /// The names of all planted bugs of the client, by which `TURNWAY_PLANTED` chooses one.
        #[cfg(feature = "planted")]
        pub const PLANTED: &[&str] = &[$(stringify!($name),)*];
        #[cfg(feature = "planted")]
        const ALL: &[Planted] = &[$(Planted::$name,)*];
    };
}

define_planted! {
    /// The wait before the next try grows without bound.
    SdkBackoffUncapped,
    /// A connection that was good for long does not make the next wait short again.
    SdkFailuresKept,
    /// What the gateway says of when to ask again is not heeded.
    SdkRetryAfterIgnored,
    /// What is refused for now is asked again without end.
    SdkRetriesForEver,
    /// Text with a hole is asked for again without end.
    SdkRepairsForEver,
    /// A resume does not say of which epoch its place is: a store that forgot is not noticed.
    SdkResumesWithoutEpoch,
    /// A session may have any number of unfinished inputs.
    SdkInputsUnbounded,
    /// A bookmark has no unfinished inputs: they are lost with the process.
    SdkBookmarkForgetsInputs,
    /// A cancel of whatever runs is said again on the next connection: it stops another turn.
    SdkCancelRepeated,
    /// The text of one run has no bound.
    SdkTextUnbounded,
    /// `hello` has everything to resume, however long: the gateway closes.
    SdkHelloOverfull,
    /// A client that was told that it comes too often is back at once.
    SdkHurriesBack,
    /// All clients of a node that drains leave in the same moment.
    SdkLeavesAtOnce,
    /// A token that is shown while a connection is greeted is not said there.
    SdkTokenStale,
    /// Ends of runs are remembered without bound.
    SdkEndsUnbounded,
}

#[cfg(feature = "planted")]
mod active {
    use super::{ALL, PLANTED, Planted};
    use std::sync::OnceLock;

    static CHOSEN: OnceLock<Option<Planted>> = OnceLock::new();

    /// Whether this bug is planted in this process. The choice is read once; names that others know are none here.
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

/// Whether this bug is planted: never, in a product build.
#[cfg(not(feature = "planted"))]
pub(crate) const fn planted(_: Planted) -> bool {
    false
}
