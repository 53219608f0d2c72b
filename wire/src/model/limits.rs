//! Limits of the parsers of calls to language models. Bytes past a limit are still relayed.

/// Length of a request body: a conversation with some images inline. The body is held until the upstream has it.
pub const CALL_BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Length of a model's name. Names of providers have up to 100 bytes with their paths, and a name goes into logs.
pub const MODEL_NAME_BYTES_MAX: usize = 256;
/// Length of one event of an answer that is parsed. The longest events carry an image of a whole answer or the complete
/// response of `response.completed`; a longer event is relayed and not parsed.
pub const MODEL_EVENT_BYTES_MAX: usize = 1024 * 1024;
/// Length of one member of an answer's document that is copied: usage and errors have less than a kilobyte.
pub const ANSWER_COPY_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a document after which it counts as an answer, if no member has told: errors are shorter than this.
pub const ANSWER_OPENING_BYTES_MAX: usize = 64 * 1024;
/// Length of an upstream's error message that is shown with a failed turn: a few sentences.
pub const MODEL_ERROR_TEXT_BYTES_MAX: usize = 512;
