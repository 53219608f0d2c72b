//! Calls of plugin hooks: catches panics and attaches stage and plugin to errors.
use crate::failure::{HookError, PipelineStage, TurnFailure};
use crate::plugin::{HookFuture, Plugin};
use futures_util::FutureExt;
use std::any::Any;
use std::panic::AssertUnwindSafe;

/// Calls a hook of a plugin. A panic becomes an error of that plugin and affects no other plugin.
pub(super) async fn call_hook<'a, T>(
    stage: PipelineStage,
    plugin: &'a dyn Plugin,
    ask: impl FnOnce(&'a dyn Plugin) -> HookFuture<'a, T>,
) -> Result<T, TurnFailure> {
    match std::panic::catch_unwind(AssertUnwindSafe(|| ask(plugin))) {
        Ok(asked) => await_hook(stage, plugin.name(), asked).await,
        Err(panic) => Err(hook_failure(stage, plugin.name(), panic_error(&*panic))),
    }
}

/// Awaits a hook that was already called, in the same way.
pub(super) async fn await_hook<T>(
    stage: PipelineStage,
    whose: &str,
    asked: HookFuture<'_, T>,
) -> Result<T, TurnFailure> {
    let answer = AssertUnwindSafe(asked).catch_unwind().await;
    answer.unwrap_or_else(|panic| Err(panic_error(&*panic))).map_err(|trouble| hook_failure(stage, whose, trouble))
}

fn hook_failure(stage: PipelineStage, plugin: &str, trouble: HookError) -> TurnFailure {
    TurnFailure::Hook { stage, plugin: plugin.to_owned(), trouble }
}

fn panic_error(panic: &(dyn Any + Send)) -> HookError {
    let said = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    HookError::new("internal_error", format!("panicked: {}", said.unwrap_or("without a word")))
}

/// Returns the failure for a panic outside of a hook.
pub(super) fn panic_failure(stage: PipelineStage, whose: &str, panic: &(dyn Any + Send)) -> TurnFailure {
    hook_failure(stage, whose, panic_error(panic))
}
