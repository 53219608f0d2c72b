//! Every limit of the kit, with its reason. The kit is no part of a node, so these stand beside the code that they bound.
use std::time::Duration;

/// From the start of an adapter until its `hello`: an interpreter on a machine with other work takes some 20 s.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Wait for an answer of the adapter: its own requests to the platform end after some 10 s, and the machine may be busy.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Wait after the last expected message for one that must not come: a second answer follows the first at once.
pub const SETTLE: Duration = Duration::from_millis(300);
/// Wait of a check in which an adapter must do nothing, such as reading from the platform while another one is active.
pub const QUIET: Duration = Duration::from_millis(1200);
/// Time for which a check leaves a message without an answer: long enough for an adapter that resends in haste.
pub const SLOW_ACK: Duration = Duration::from_secs(2);
/// Delay of the platform in checks about slow answers: others must overtake it, also on a busy machine.
pub const SLOW_PLATFORM: Duration = Duration::from_secs(2);
/// Least pause before a reconnect. Below it a fleet of adapters floods a gateway that restarts.
pub const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Least time that [`REFUSED_CONNECTIONS`] refused connections take: waits that do not grow take less.
pub const REFUSED_TIME_MIN: Duration = Duration::from_millis(500);
/// Connections that are refused in a row: doubling waits stay below 2 s for so many.
pub const REFUSED_CONNECTIONS: usize = 3;
/// Longest pause before a reconnect, in a check: waits of adapters double up to some 15 s, and a restart counts, too.
pub const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time of one check, whatever it waits for. The longest takes some 10 s with a correct adapter.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(180);
/// Time after the faults of a chaos script in which everything must be settled: waits of adapters have grown by then.
pub const CHAOS_SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Duration of the chaos script without an option: about twenty faults.
pub const CHAOS_SECONDS: u64 = 60;
/// Longest chaos script: what is recorded of an hour still fits into [`RECORDS_MAX`].
pub const CHAOS_SECONDS_MAX: u64 = 3600;
/// Attempts at one part in a chaos script: the gateway makes 300 in a day, a minute has room for far fewer.
pub const CHAOS_ATTEMPTS_MAX: u32 = 100;
/// Recorded messages; later ones are counted as a violation. A chaos script of an hour records some 50,000.
pub const RECORDS_MAX: usize = 200_000;
/// Connections of an adapter in one run; further ones are closed at once. A correct adapter makes about thirty.
pub const CONNECTIONS_MAX: usize = 1000;
/// Messages that wait for one connection of an adapter; the checks send some ten at a time.
pub const OUTGOING_MAX: usize = 1024;
/// Lines of the adapter's output that are kept as evidence.
pub const OUTPUT_LINES_MAX: usize = 20;
/// Bytes of one line of output that are kept.
pub const OUTPUT_LINE_BYTES_MAX: usize = 300;
/// Messages that are shown as evidence of one failed check.
pub const EVIDENCE_MESSAGES_MAX: usize = 12;
/// Characters of one message in the evidence.
pub const EVIDENCE_CHARACTERS_MAX: usize = 400;
/// Wait for an answer of the platform's control API, which answers from memory.
pub const CONTROL_TIMEOUT: Duration = Duration::from_secs(15);
/// Size of an answer of the control API: a journal of a chaos script has some 100 KiB.
pub const CONTROL_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Largest file that the kit's gateway takes: the checks send files of some 100 KiB.
pub const FILE_BYTES_MAX: usize = 1024 * 1024;
/// Files, and requests about them, that the kit's gateway keeps in one run; a check makes some fifty.
pub const FILES_MAX: usize = 1000;
/// Uploads of one file of which the first four fail: one more succeeds, and a restart of the whole attempt adds some.
pub const FILE_ATTEMPTS_MAX: usize = 10;
/// Life of a token for files: longer than a check.
pub const FILE_TOKEN_TTL: Duration = Duration::from_secs(600);
/// Between two looks at the platform while a check waits for a line.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(30);
/// Units of the text that proves a declared limit: four times the largest limit of the known platforms.
pub const PROVED_TEXT_MAX: u64 = 8_000;
