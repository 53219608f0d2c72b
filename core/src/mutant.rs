//! Planted bugs: mistakes somebody could make. One that survives the simulator's checkers is a
//! missing checker. They exist only with the feature `mutants`; else [`planted`] is `false` and the
//! compiler drops every trace.

macro_rules! define_mutants {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A mistake somebody could make.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutant {
            /// None: the design as it is meant.
            #[default]
            None,
            $($(#[$doc])* $name,)*
        }
        impl Mutant {
            /// Every planted bug.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}
define_mutants! {
    /// The store writes for anyone who once owned. (G1, I1)
    NoFence,
    /// The fence compares epochs with `>=` and forgets the nonce. (G1, I1)
    FenceByOrder,
    /// Epochs count from the last one and forget the clock. (G1, I2)
    EpochCounts,
    /// The same message may be accepted twice. (G2, I4)
    NoDedupe,
    /// A terminal fact leaves its input in the inbox. (G3, I5)
    ConsumeApart,
    /// A claim expects a holder but no epoch, so a late copy of it wins again.
    ClaimIgnoresEpoch,
    /// A lease that ran out may be renewed.
    LeaseRevives,
    /// Listener changes carry no stamp, so a late copy undoes a newer one.
    ListenUnstamped,
    /// The owner learns of listeners only from words.
    AppendIgnoresListeners,
    /// Inputs that nobody owns are in no index. (G9)
    SweepSkipsFree,
    /// Sessions of the dead are swept only while an input is open. (G9)
    SweepSkipsQuiet,
    /// Only the edge that rang looks after a dead owner. (G9)
    NoSweep,
    /// A node trusts its lease without looking at its own clock.
    NoSelfFence,
    /// The agent hears before the fact is durable. (G4)
    OrderEarly,
    /// Attempts are not bounded. (G8)
    NoPoison,
    /// A turn that may not be repeated is repeated.
    AlwaysRetry,
    /// An agent that is busy is asked again at once, whenever it wants to be. (G3)
    BusyAskedAtOnce,
    /// An old attempt's output is taken for the new one's.
    AttemptsMixed,
    /// What an agent says under an earlier ownership is taken under the next. (G6)
    ReportsUnfenced,
    /// The end of the text is left to the chunks. (G6)
    TailUnsaved,
    /// The payload in a bell is used without looking at what came before. (I6)
    BellTrusted,
    /// An edge lets facts through that leave a gap. (G5)
    EdgeSkipsGap,
    /// Nothing tells an edge that it missed the last fact. (G9)
    NoBeacon,
    /// Owners keep what is idle, and beacon for it. (G8)
    IdleKept,
    /// A new life of a node does not listen again.
    NoRelisten,
    /// The same life is asked for twice, so a late copy of the first grant revives it.
    GrantRepeats,
    /// A node asks for another life each time, though the last request is not answered yet.
    GrantAnew,
    /// A death is believed after [`crate::limits::LEASE_CONTACT`] only, whatever the dead one's lease tells.
    ContactOnly,
    /// A node does not notice that the store forgot.
    EraIgnored,
    /// Who cannot be heard by the bus is struck from the listeners, leased or not.
    PruneUnheard,
    /// A reader's cursor is a number without an epoch.
    CursorBare,
    /// A cancelled run may still be completed by late output. (sticky terminals, ST-12)
    LateOutputWins,
    /// A cancel of a waiting input is forgotten. (ST-14)
    CancelSkipsQueued,
    /// CANCEL_ACK is waited for without end. (LN-SR2)
    CancelNeverForced,
    /// Control entries are read only when an input arrives. (G9)
    ControlUnread,
    /// An acceptance is shown before the store has answered. (G3)
    AcceptEarly,
    /// A link that reads slowly is sent text without bound. (G8)
    CreditIgnored,
    /// A link whose text has a hole is shown what follows it.
    TextSkipsGap,
    /// Facts of a session are shown to whoever asks. (G7)
    ReadUnchecked,
    /// A snapshot forgets what waits.
    SnapshotForgetsQueue,
    /// An input accepted while its session closed is left lying. (G3)
    CloseLeavesInputs,
    /// An interrupt waits behind what waited before it. (I6)
    InterruptQueues,
    /// What is said again of an attempt that goes on is taken for new. (G6)
    ResumeRepeats,
    /// A state is recorded without saying how far its attempt is, so it is recorded again. (G6)
    StateUnmarked,
    /// An attempt that goes on and on with owner after owner is not counted. (G8)
    ResumeUncounted,
    /// An attempt that could go on begins again.
    ResumeRestarts,
    /// A member that speaks is removed without waiting for it to stop. (SR-T11)
    RemovalHasty,
    /// Who is to leave is asked the next question all the same. (SR-D5)
    LeaverAsked,
    /// A change of members ends by its receipt alone. (G9)
    ChangeNeverFails,
    /// What a run was handed and has not taken ends with it all the same. (ST-9)
    SteerLost,
    /// What a run has taken is asked again as a turn of its own. (ST-9)
    SteerTwice,
    /// A run ends without waiting for what its agent says to what it was given. (ST-9)
    SteerUnawaited,
    /// What an attempt that was lost had taken counts for the next one. (ST-9)
    SteerStaysTaken,
    /// An agent is given an input before the fact is durable. (G4)
    SteerEarly,
    /// What another input stands in for is asked all the same. (ST-6)
    ReplacedStays,
    /// An input that stands in for another waits behind all that wait. (I6)
    ReplacementWaitsLast,
    /// A handover does not wait for a person. (SR-F3)
    HandoverUnasked,
    /// A handover that nobody decides on stays open. (G9)
    HandoverNeverExpires,
    /// Who was handed a session is told of it with every turn. (SR-F6)
    HandoverToldAgain,
    /// A tool runner hears before the fact is durable. (G4)
    ActionEarly,
    /// The next owner has done again what it finds open. (EV-N5)
    ActionRedone,
    /// What a run asks for by the same name again is another action. (EV-N5)
    ActionAskedAgain,
    /// An action of which nothing is heard stays open. (G9)
    ActionNeverEnds,
    /// An agent is told of a fact before that is durable. (G4)
    NewsEarly,
    /// An agent is not told of every fact it has subscribed to. (EV-G1)
    NewsSkipped,
    /// Who has reserved a session waits for the word that it was handed over, which may be lost. (G9)
    ReservedForgotten,
    /// A session that is handed over keeps its epoch. (G1, I2)
    TransferKeepsEpoch,
    /// A session is claimed before it is in its claimer's index. (G9, I9)
    ClaimUnlisted,
    /// A sweep clears registrations away that an op may still lean on. (G9, I3)
    IndexClearsYoung,
    /// Who releases a session clears its registration away at once, though an op on its way may lean on it. (G9, I3)
    ReleaseClearsYoung,
    /// An input for a session that nobody owns leans on a registration that may be gone. (G9, I3)
    IndexStale,
    /// A node of a fleet keeps the time of its own system though the store has told another.
    ClockKeepsGuess,
    /// A step of a clock is believed at once.
    ClockStepsAtOnce,
    /// A small correction of a clock takes the time back.
    ClockFallsBack,
    /// A fact's time is earlier than that of the fact before.
    FactTimeFallsBack,
}

#[cfg(feature = "mutants")]
mod active {
    use super::Mutant;
    use std::cell::Cell;

    thread_local! {
        static ACTIVE: Cell<Mutant> = const { Cell::new(Mutant::None) };
    }

    /// Whether this bug is planted in the world this thread simulates.
    pub fn planted(mutant: Mutant) -> bool {
        ACTIVE.get() == mutant
    }
    /// Plants a bug for this thread.
    pub fn plant(mutant: Mutant) {
        ACTIVE.set(mutant);
    }
}

#[cfg(feature = "mutants")]
pub use active::{plant, planted};

/// Whether this bug is planted: never, in a product build.
#[cfg(not(feature = "mutants"))]
pub const fn planted(_: Mutant) -> bool {
    false
}
