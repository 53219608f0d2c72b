//! An example of a node with plugins of one's own: all that `turnway` does, and every turn passes these three.
//!
//! `cargo run -p turnway-example-node -- serve --demo`
mod diary;

use diary::Diary;
use std::process::ExitCode;
use turnway_example_profanity::Profanity;
use turnway_example_prompt_builder::PromptBuilder;

/// As of `turnway` itself.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    turnway::Node::builder()
        .plugin(Diary::at("turns.log"))
        .plugin(PromptBuilder::new(4))
        .plugin(Profanity::new(["darn"]).refusing(["bomb"]))
        .main()
}
