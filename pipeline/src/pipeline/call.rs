//! A hook is called: what it says, or what has become of it.
use crate::failure::{Failure, Stage, Trouble};
use crate::plugin::{Hook, Plugin};
use futures_util::FutureExt;
use std::any::Any;
use std::panic::AssertUnwindSafe;

/// Asks a plugin. A panic is an error like any other: it is the plugin's, and nobody else's.
pub(super) async fn hook<'a, T>(
    stage: Stage,
    plugin: &'a dyn Plugin,
    ask: impl FnOnce(&'a dyn Plugin) -> Hook<'a, T>,
) -> Result<T, Failure> {
    match std::panic::catch_unwind(AssertUnwindSafe(|| ask(plugin))) {
        Ok(asked) => guarded(stage, plugin.name(), asked).await,
        Err(panic) => Err(failed(stage, plugin.name(), panicked(&*panic))),
    }
}

/// The same of what has been asked already.
pub(super) async fn guarded<T>(stage: Stage, whose: &str, asked: Hook<'_, T>) -> Result<T, Failure> {
    let answer = AssertUnwindSafe(asked).catch_unwind().await;
    answer.unwrap_or_else(|panic| Err(panicked(&*panic))).map_err(|trouble| failed(stage, whose, trouble))
}

fn failed(stage: Stage, plugin: &str, trouble: Trouble) -> Failure {
    Failure::Hook { stage, plugin: plugin.to_owned(), trouble }
}

fn panicked(panic: &(dyn Any + Send)) -> Trouble {
    let said = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    Trouble::new("internal_error", format!("panicked: {}", said.unwrap_or("without a word")))
}

/// What a panic of something else than a hook comes to.
pub(super) fn broken(stage: Stage, whose: &str, panic: &(dyn Any + Send)) -> Failure {
    failed(stage, whose, panicked(panic))
}
