//! Deliberate bugs for the simulator: a bug that the simulator's checkers do not notice shows a missing checker. The
//! bugs exist only with the feature `mutants`; otherwise [`planted`] is a constant `false` and the compiler removes
//! every use.

macro_rules! define_mutants {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A deliberate bug, of a kind that a programmer could introduce.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutant {
            /// No bug: the intended design.
            #[default]
            None,
            $($(#[$doc])* $name,)*
        }
        impl Mutant {
            /// Every deliberate bug.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}
define_mutants! {
    /// The store accepts writes from any former owner. (G1, I1)
    NoFence,
    /// The fence compares epochs with `>=` and ignores the nonce. (G1, I1)
    FenceByOrder,
    /// Epochs count up from the previous one and ignore the clock. (G1, I2)
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
    /// The owner learns of listeners only from peer messages.
    AppendIgnoresListeners,
    /// Inputs of sessions without an owner are in no index. (G9)
    SweepSkipsFree,
    /// Sessions of dead nodes are swept only while an input is open. (G9)
    SweepSkipsQuiet,
    /// Only the edge that rang takes care of a dead owner's session. (G9)
    NoSweep,
    /// A node trusts its lease without checking its own clock.
    NoSelfFence,
    /// The agent gets its order before the fact is durable. (G4)
    OrderEarly,
    /// Attempts are not bounded. (G8)
    NoPoison,
    /// A turn that may not be repeated is repeated.
    AlwaysRetry,
    /// The silence and the time of a run go on while it waits for a model.
    CallsCountAsSilence,
    /// A call whose node is lost stays open for ever.
    LostCallKept,
    /// A busy agent is asked again at once, whatever time the agent gave. (G3)
    BusyAskedAtOnce,
    /// An old attempt's output is accepted as the new attempt's output.
    AttemptsMixed,
    /// Events that an agent sent under an earlier ownership are accepted under the next. (G6)
    ReportsUnfenced,
    /// The end of the text is recorded in checkpoints only. (G6)
    TailUnsaved,
    /// The payload of a doorbell is used without checking the entry before it. (I6)
    BellTrusted,
    /// An edge lets facts through that leave a gap. (G5)
    EdgeSkipsGap,
    /// No message tells an edge that it missed the last fact. (G9)
    NoBeacon,
    /// Owners keep idle sessions, and send digests for them. (G8)
    IdleKept,
    /// A node with a new lease does not listen again.
    NoRelisten,
    /// The same lease id is requested twice, so a late copy of the first grant revives the lease.
    GrantRepeats,
    /// A node requests a new lease id each time, though the last request is not answered yet.
    GrantAnew,
    /// A death is accepted only after [`crate::limits::LEASE_CONTACT`], whatever the dead node's lease says.
    ContactOnly,
    /// A node does not notice that the store lost its data.
    EraIgnored,
    /// A node that the bus cannot reach is removed from the listeners, with or without a lease.
    PruneUnheard,
    /// A reader's cursor is a number without an epoch.
    CursorBare,
    /// A cancelled run may still be completed by late output. (sticky terminals, ST-12)
    LateOutputWins,
    /// A cancel of a waiting input is forgotten. (ST-14)
    CancelSkipsQueued,
    /// The owner waits for CANCEL_ACK without a limit. (LN-SR2)
    CancelNeverForced,
    /// Control entries are read only when an input arrives. (G9)
    ControlUnread,
    /// An acceptance is shown before the store has answered. (G3)
    AcceptEarly,
    /// A link that reads slowly is sent text without bound. (G8)
    CreditIgnored,
    /// A link whose text has a gap is shown the text after the gap.
    TextSkipsGap,
    /// Facts of a session are shown to every user that asks. (G7)
    ReadUnchecked,
    /// A snapshot omits the waiting inputs.
    SnapshotForgetsQueue,
    /// An input accepted while its session closed stays in the inbox. (G3)
    CloseLeavesInputs,
    /// An interrupt waits behind the inputs that were waiting before it. (I6)
    InterruptQueues,
    /// Events that a resumed attempt repeats are accepted as new. (G6)
    ResumeRepeats,
    /// A state is recorded without the attempt's position, so it is recorded again after a resume. (G6)
    StateUnmarked,
    /// An attempt that is resumed by owner after owner is not counted. (G8)
    ResumeUncounted,
    /// A resumable attempt starts from the beginning.
    ResumeRestarts,
    /// A speaking member is removed without waiting for it to stop. (SR-T11)
    RemovalHasty,
    /// An agent that is about to leave is still given the next question. (SR-D5)
    LeaverAsked,
    /// A change of members ends only with its receipt. (G9)
    ChangeNeverFails,
    /// Inputs that a run was handed and did not take end with the run all the same. (ST-9)
    SteerLost,
    /// An input that a run has taken is asked again as a turn of its own. (ST-9)
    SteerTwice,
    /// A run ends without waiting for its agent's answers to the inputs that it was handed. (ST-9)
    SteerUnawaited,
    /// Inputs taken by a lost attempt count for the next attempt. (ST-9)
    SteerStaysTaken,
    /// An agent is handed an input before the fact is durable. (G4)
    SteerEarly,
    /// An input that was replaced by another is asked all the same. (ST-6)
    ReplacedStays,
    /// An input that replaces another waits behind all waiting inputs. (I6)
    ReplacementWaitsLast,
    /// A handover does not wait for a person's decision. (SR-F3)
    HandoverUnasked,
    /// A handover without a decision stays open. (G9)
    HandoverNeverExpires,
    /// The agent that received a handover is told of the handover with every turn. (SR-F6)
    HandoverToldAgain,
    /// A tool runner gets its order before the fact is durable. (G4)
    ActionEarly,
    /// The next owner runs the actions again that it finds open. (EV-N5)
    ActionRedone,
    /// A repeated request for an action, with the same name in the same run, starts another action. (EV-N5)
    ActionAskedAgain,
    /// An action without any report stays open. (G9)
    ActionNeverEnds,
    /// An agent is sent a fact before the fact is durable. (G4)
    NewsEarly,
    /// An agent is not sent every fact that it has subscribed to. (EV-G1)
    NewsSkipped,
    /// A new owner orders a part as if nobody had sent it.
    DeliverySentBlindly,
    /// Two deliveries to one place are on their way at a time.
    DeliveryOvertakes,
    /// A receipt counts wherever the platform has put the part. (G7)
    ReceiptAnywhere,
    /// An order that was lost is never repeated. (G9)
    OrderNotRepeated,
    /// An order that is repeated claims that nobody has sent the part.
    OrderRepeatedBlindly,
    /// A part that somebody else may have sent is sent, though nobody recognises it.
    DoubtfulPartSent,
    /// A part whose adapter is gone counts as not sent.
    LostPartUnsent,
    /// A node whose adapter sends again forgets that others may have sent meanwhile.
    DeskAlwaysKnew,
    /// A binding that expires stays, and expires again.
    BindingExpiresTwice,
    /// An unbind ends whichever binding the conversation has.
    UnbindAnyGeneration,
    /// A binding that replaces another has its generation.
    BindingKeepsGeneration,
    /// A bind replaces a binding of another generation than it names.
    BindAnyGeneration,
    /// A touch of a binding that has ended makes it active again.
    TouchRevives,
    /// A refused bind names the binding that ended last as the present one.
    RefusedBindNamesOld,
    /// A session still lists a conversation whose binding has ended.
    IndexKeepsEnded,
    /// A session does not list a conversation that was bound to another session before.
    IndexForgetsRebound,
    /// A lookup returns a binding whose time is over. (G7)
    ExpiredBindingFound,
    /// A binding that moves to another id leaves its old id free. (G7)
    MoveLeavesNoAlias,
    /// A binding is active under both ids while it moves.
    MoveBindsTwice,
    /// The end of a binding counts as recorded before the session's log has it. (G9)
    BindingEndUnrecorded,
    /// A message of a bound conversation goes to the conversation's own session. (G7)
    BindingIgnored,
    /// A message that is brought again after a rebind runs again. (G2)
    RepeatUnsearched,
    /// An answer goes to the place of another turn of the session. (G7)
    AnswerElsewhere,
    /// The end of a task goes to the conversation of its requester, whatever the router says. (G7)
    TaskEndsAtRequester,
    /// A further owner of the session that gave a task begins the task once more. (G2)
    TaskBegunAgain,
    /// The node reports the end of a task to its giver when the task begins.
    TaskEndGuessed,
    /// A further attempt at a turn asks its agent only the first of the gathered messages. (BD-M8)
    GatheredUnasked,
    /// A gathered message becomes a turn of its own if the turn that has it needs a further attempt. (BD-M8)
    GatheredRunsAlone,
    /// Two people press buttons of one answer at a time, and both presses count. (BD-I4)
    PressesRace,
    /// A successor that reserved a session waits for the handover message, which may be lost. (G9)
    ReservedForgotten,
    /// A session that is handed over keeps its epoch. (G1, I2)
    TransferKeepsEpoch,
    /// A session is claimed before it is in its claimer's index. (G9, I9)
    ClaimUnlisted,
    /// A sweep clears registrations that a pending op may still depend on. (G9, I3)
    IndexClearsYoung,
    /// An owner that releases a session clears its registration at once, though a pending op may depend on it. (G9,
    /// I3)
    ReleaseClearsYoung,
    /// An input for a session without an owner depends on a registration that may be gone. (G9, I3)
    IndexStale,
    /// A node of a fleet keeps the time of its own system though the store has given another time.
    ClockKeepsGuess,
    /// A step of a clock is accepted at once.
    ClockStepsAtOnce,
    /// A small correction of a clock moves the time back.
    ClockFallsBack,
    /// A fact's time is earlier than the time of the previous fact.
    FactTimeFallsBack,
}

#[cfg(feature = "mutants")]
mod active {
    use super::Mutant;
    use std::cell::Cell;

    thread_local! {
        static ACTIVE: Cell<Mutant> = const { Cell::new(Mutant::None) };
    }

    /// Returns whether this bug is active in the world that this thread simulates.
    pub fn planted(mutant: Mutant) -> bool {
        ACTIVE.get() == mutant
    }
    /// Activates a bug for this thread.
    pub fn plant(mutant: Mutant) {
        ACTIVE.set(mutant);
    }
}

#[cfg(feature = "mutants")]
pub use active::{plant, planted};

/// Returns whether this bug is active: never, in a product build.
#[cfg(not(feature = "mutants"))]
pub const fn planted(_: Mutant) -> bool {
    false
}
