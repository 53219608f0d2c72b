//! Searches for planted bugs: first in situations where they are likely to show, then in random worlds.
use super::cases::{self, OwnerExit};
use super::clocks;
use super::faults::Faults;
use super::model_calls;
use super::verdict::{judge, verdict};
use super::world::World;
use std::time::{Duration, Instant};
use turnway_core::mutant::Mutant;

/// A situation in which some bugs show.
struct Situation {
    name: &'static str,
    for_bugs: &'static [Mutant],
    /// Runs for each random world; cheap situations run more often.
    often: u64,
    run: fn(u64),
}

fn idle(_: u64) {
    let few = cases::idle_minute(10);
    let many = cases::idle_minute(60);
    assert!(many.0 <= few.0 + 20 && many.1 <= few.1, "G8: idle sessions cost: {few:?} {many:?}");
}

fn young_fleet(seed: u64) {
    let wait = cases::resume_ms(seed, OwnerExit::Crash, 0);
    assert!(wait.is_none_or(|wait| wait <= 1200), "G9: a death in a young fleet is believed late: {wait:?} ms");
}

fn scenario(seed: u64, faults: Faults) {
    World::scenario(seed, faults);
}

const TRAPS: &[Situation] = &[
    Situation { name: "idle", for_bugs: &[Mutant::IdleKept], often: 1, run: idle },
    Situation { name: "long session", for_bugs: &[Mutant::SnapshotForgetsQueue], often: 1, run: cases::long_session },
    Situation {
        name: "cancel while waiting",
        for_bugs: &[Mutant::CancelSkipsQueued],
        often: 1,
        run: cases::cancel_while_waiting,
    },
    Situation { name: "busy agent", for_bugs: &[Mutant::BusyAskedAtOnce], often: 1, run: cases::busy_agent },
    Situation {
        name: "calls of models",
        for_bugs: &[Mutant::CallsCountAsSilence, Mutant::LostCallKept],
        often: 1,
        run: model_calls::model_calls,
    },
    Situation {
        name: "forgetful store",
        for_bugs: &[
            Mutant::EpochCounts,
            Mutant::EraIgnored,
            Mutant::CursorBare,
            Mutant::FenceByOrder,
            Mutant::ReportsUnfenced,
            Mutant::AttemptsMixed,
        ],
        often: 1,
        run: |seed| scenario(seed, Faults { rewind: 40, ..Faults::HIGH }),
    },
    Situation {
        name: "late copies",
        for_bugs: &[Mutant::ClaimIgnoresEpoch],
        often: 1,
        run: |seed| scenario(seed, Faults { unknown: 40, cut: 40, crash: 20, ..Faults::HIGH }),
    },
    Situation {
        name: "lasting",
        for_bugs: &[Mutant::ResumeRepeats, Mutant::StateUnmarked, Mutant::ResumeUncounted, Mutant::ResumeRestarts],
        often: 1,
        run: |seed| scenario(seed, Faults { crash: 40, drain: 20, ..Faults::HIGH }.with_resumable_agent()),
    },
    Situation {
        name: "company",
        for_bugs: &[Mutant::RemovalHasty, Mutant::LeaverAsked, Mutant::ChangeNeverFails],
        often: 1,
        run: |seed| scenario(seed, Faults { outage: 10, ..Faults::HIGH }.with_member_changes()),
    },
    Situation {
        name: "steering",
        for_bugs: &[
            Mutant::SteerLost,
            Mutant::SteerTwice,
            Mutant::SteerUnawaited,
            Mutant::SteerStaysTaken,
            Mutant::SteerEarly,
            Mutant::ReplacedStays,
            Mutant::ReplacementWaitsLast,
        ],
        often: 1,
        run: |seed| scenario(seed, Faults::HIGH.steering()),
    },
    Situation {
        name: "handing over",
        for_bugs: &[Mutant::HandoverUnasked, Mutant::HandoverNeverExpires, Mutant::HandoverToldAgain],
        often: 1,
        run: |seed| scenario(seed, Faults::HIGH.handovers()),
    },
    Situation {
        name: "having things done",
        for_bugs: &[
            Mutant::ActionEarly,
            Mutant::ActionRedone,
            Mutant::ActionAskedAgain,
            Mutant::ActionNeverEnds,
            Mutant::NewsEarly,
            Mutant::NewsSkipped,
        ],
        often: 1,
        run: |seed| scenario(seed, Faults { crash: 30, ..Faults::HIGH }.actions()),
    },
    Situation {
        name: "rooms",
        for_bugs: &[
            Mutant::DeliverySentBlindly,
            Mutant::DeliveryOvertakes,
            Mutant::ReceiptAnywhere,
            Mutant::OrderNotRepeated,
            Mutant::OrderRepeatedBlindly,
            Mutant::DoubtfulPartSent,
            Mutant::LostPartUnsent,
            Mutant::DeskAlwaysKnew,
        ],
        often: 1,
        run: |seed| scenario(seed, Faults { crash: 20, ..Faults::HIGH }.channels()),
    },
    Situation {
        name: "bound rooms",
        for_bugs: &[
            Mutant::BindingExpiresTwice,
            Mutant::UnbindAnyGeneration,
            Mutant::BindingKeepsGeneration,
            Mutant::BindAnyGeneration,
            Mutant::TouchRevives,
            Mutant::RefusedBindNamesOld,
            Mutant::IndexKeepsEnded,
            Mutant::IndexForgetsRebound,
            Mutant::ExpiredBindingFound,
            Mutant::MoveLeavesNoAlias,
            Mutant::MoveBindsTwice,
            Mutant::BindingEndUnrecorded,
            Mutant::BindingIgnored,
            Mutant::RepeatUnsearched,
            Mutant::AnswerElsewhere,
        ],
        often: 1,
        run: |seed| scenario(seed, Faults { crash: 20, ..Faults::HIGH }.channels()),
    },
    Situation {
        name: "tasks",
        for_bugs: &[Mutant::TaskEndsAtRequester, Mutant::TaskBegunAgain, Mutant::TaskEndGuessed],
        often: 1,
        run: |seed| scenario(seed, Faults { crash: 20, ..Faults::HIGH }.tasks()),
    },
    Situation {
        name: "gathered messages",
        for_bugs: &[Mutant::GatheredUnasked, Mutant::GatheredRunsAlone],
        often: 1,
        run: |seed| scenario(seed, Faults { crash: 20, ..Faults::HIGH }.debounce()),
    },
    Situation {
        name: "buttons",
        for_bugs: &[Mutant::PressesRace],
        often: 1,
        run: |seed| scenario(seed, Faults { crash: 20, ..Faults::HIGH }.buttons()),
    },
    Situation {
        name: "leaving",
        for_bugs: &[Mutant::TransferKeepsEpoch],
        often: 1,
        run: |seed| scenario(seed, Faults { drain: 60, ..Faults::HIGH }),
    },
    Situation {
        name: "indexes",
        for_bugs: &[Mutant::ClaimUnlisted, Mutant::IndexClearsYoung, Mutant::IndexStale, Mutant::ReleaseClearsYoung],
        often: 1,
        run: |seed| scenario(seed, Faults { clock: 0, slow: 40, ..Faults::HIGH }.indexed()),
    },
    Situation {
        name: "handed over unheard",
        for_bugs: &[Mutant::ReservedForgotten],
        often: 32,
        run: cases::handed_over_unheard,
    },
    Situation { name: "far store", for_bugs: &[Mutant::GrantAnew], often: 1, run: cases::far_store },
    Situation { name: "young fleet", for_bugs: &[Mutant::ContactOnly], often: 32, run: young_fleet },
    Situation {
        name: "clocks",
        for_bugs: &[Mutant::ClockStepsAtOnce, Mutant::ClockFallsBack],
        often: 32,
        run: clocks::glitches,
    },
    Situation { name: "late grant", for_bugs: &[Mutant::GrantRepeats], often: 32, run: cases::late_grant },
];

/// Searches for a planted bug until the time is up; returns where and by which checker the bug was detected.
pub fn detect(mutant: Mutant, time: Duration) -> Option<String> {
    let start = Instant::now();
    let traps: Vec<&Situation> = TRAPS.iter().filter(|trap| trap.for_bugs.contains(&mutant)).collect();
    for round in 0.. {
        for (trap, seed) in
            traps.iter().flat_map(|trap| (round * trap.often..(round + 1) * trap.often).map(move |seed| (trap, seed)))
        {
            if let Err(why) = judge(mutant, || (trap.run)(seed))
                && judge(Mutant::None, || (trap.run)(seed)).is_ok()
            {
                return Some(format!("{} {seed} | {why}", trap.name));
            }
        }
        // A seed that also fails without the bug proves nothing about the bug.
        if let Err(why) = verdict(round, mutant)
            && verdict(round, Mutant::None).is_ok()
        {
            return Some(format!("seed {round} | {why}"));
        }
        if start.elapsed() >= time {
            return None;
        }
    }
    None
}
