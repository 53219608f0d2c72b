//! The tools by which an agent shapes what conversations show of it. Actions with these tools are carried out by the
//! gateway, through the adapter of the conversation, and by no tool runner.

/// The tool that sets the buttons below the answer of the running turn.
pub const BUTTONS_TOOL: &str = "message.buttons";

/// All these tools.
pub const MESSAGE_TOOLS: [&str; 1] = [BUTTONS_TOOL];
