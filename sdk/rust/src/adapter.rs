//! Adapters: an account of a chat platform on one side, the gateway on the other. An author implements [`Platform`];
//! this module connects, stays connected, and reports what is known about each part (docs/protocol.md §1.10).
mod capabilities;
mod driver;
mod event;
mod handle;
mod machine;
mod offset_file;
mod options;
mod order;
mod outcome;
mod output;
mod place;
mod platform;

pub use capabilities::{CapabilityLevel, ChannelCapabilities, LengthUnit};
pub use event::{Disposition, PlatformEvent, PlatformEventKind, PlatformUpdate, SettledEvent};
pub use handle::{Adapter, AdapterHandle};
pub use offset_file::OffsetFile;
pub use options::AdapterOptions;
pub use order::{AttachmentOrder, ButtonOrder, ChangeOrder, ConversationOrder, PartOrder};
pub use outcome::{FailureClass, PlatformFailure, SentPart};
pub use output::AdapterStatus;
pub use platform::Platform;
