//! Calls of plugin hooks: catches panics and attaches stage and plugin to errors.
use crate::failure::{Failure, Stage, Trouble};
use crate::plugin::{Hook, Plugin};
use futures_util::FutureExt;
use std::any::Any;
use std::panic::AssertUnwindSafe;

/// Calls a hook of a plugin. A panic becomes an error of that plugin and affects no other plugin.
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

/// Awaits a hook that was already called, in the same way.
pub(super) async fn guarded<T>(stage: Stage, whose: &str, asked: Hook<'_, T>) -> Result<T, Failure> {
    let answer = AssertUnwindSafe(asked).catch_unwind().await;
    answer.unwrap_or_else(|panic| Err(panicked(&*panic))).map_err(|trouble| failed(stage, whose, trouble))
}

fn failed(stage: Stage, plugin: &str, trouble: Trouble) -> Failure {
    Failure::Hook { stage, plugin: plugin.to_owned(), trouble }
}

fn panicked(panic: &(dyn Any + Send)) -> Trouble {
    let said = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    Trouble::new("internal_error", format!("panicked: {}", said.unwrap_or("no message")))
}

/// Returns the failure for a panic outside of a hook.
pub(super) fn broken(stage: Stage, whose: &str, panic: &(dyn Any + Send)) -> Failure {
    failed(stage, whose, panicked(panic))
}
