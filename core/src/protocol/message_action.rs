//! The tools by which an agent shapes what conversations show of it. Actions with these tools are carried out by the
//! gateway, through the adapter of the conversation, and by no tool runner.

/// The tool that sets the buttons below the answer of the running turn.
pub const BUTTONS_TOOL: &str = "message.buttons";

/// The tool that replaces the text of an earlier answer.
pub const EDIT_TOOL: &str = "message.edit";
/// The tool that removes an earlier answer.
pub const DELETE_TOOL: &str = "message.delete";
/// The tool that reacts to a message that somebody wrote.
pub const REACT_TOOL: &str = "message.react";

/// The tools that change messages which the platform has.
pub const CHANGE_TOOLS: [&str; 3] = [EDIT_TOOL, DELETE_TOOL, REACT_TOOL];
/// All these tools.
pub const MESSAGE_TOOLS: [&str; 4] = [BUTTONS_TOOL, EDIT_TOOL, DELETE_TOOL, REACT_TOOL];
