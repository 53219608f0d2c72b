//! Every limit of the pipeline, with its reason.

/// Bytes of one turn's output, streamed or not: 8 MiB, because the pipeline keeps all of it. The gateway ends an
/// attempt at half of that (`TURN_TEXT_BYTES_MAX`), so in a node the session's own limit always applies first.
pub const OUTPUT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Messages that one turn may send: a plugin that renders more has a bug.
pub const OUTBOUND_MAX: usize = 1_000;

/// Bytes of the name of a tape's file, without its extension: file systems allow 255.
pub const TAPE_NAME_BYTES_MAX: usize = 240;

/// Bytes of a workspace's `AGENTS.md` that become part of the system prompt; the rest is left out, with a log line.
pub const AGENTS_FILE_BYTES_MAX: u64 = 64 * 1024;
