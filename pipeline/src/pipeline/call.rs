//! The only place that calls code of plugins, routers and tape stores: catches panics, in the call itself as in the
//! future that the call returns, and attaches stage and name to errors. Called by `pipeline`, and by hosts.
use crate::failure::{HookError, PipelineStage, TurnFailure};
use crate::plugin::{HookFuture, Plugin};
use futures_util::FutureExt;
use std::any::Any;
use std::panic::AssertUnwindSafe;

/// Name of a plugin that panics when it is asked for its name.
const UNNAMED: &str = "unnamed";
/// Name for panics that no single plugin is blamed for.
pub(super) const PIPELINE: &str = "pipeline";

/// Calls a hook of a plugin. A panic becomes an error of that plugin and affects no other plugin.
pub(super) async fn call_hook<'a, T>(
    stage: PipelineStage,
    plugin: &'a dyn Plugin,
    ask: impl FnOnce(&'a dyn Plugin) -> HookFuture<'a, T>,
) -> Result<T, TurnFailure> {
    let answer = caught(async { ask(plugin).await }).await;
    answer.flatten().map_err(|error| hook_failure(stage, &plugin_name(plugin), error))
}

/// Calls a method of a plugin that returns at once, in the same way.
pub(super) async fn call_method<'a, T>(
    stage: PipelineStage,
    plugin: &'a dyn Plugin,
    ask: impl FnOnce(&'a dyn Plugin) -> T,
) -> Result<T, TurnFailure> {
    let answer = caught(async { ask(plugin) }).await;
    answer.map_err(|error| hook_failure(stage, &plugin_name(plugin), error))
}

/// Runs other foreign work, which calls a router, a tape store or a stream, under a given name.
pub(super) async fn run_caught<T>(
    stage: PipelineStage,
    whose: &str,
    work: impl Future<Output = Result<T, HookError>>,
) -> Result<T, TurnFailure> {
    caught(work).await.flatten().map_err(|error| hook_failure(stage, whose, error))
}

/// Runs stages to their end, or to a panic outside of the calls above: values of plugins may panic when they are
/// dropped, such as the future of a hook after a cancel.
pub(super) async fn run_unwinding<T>(stages: impl Future<Output = Result<T, TurnFailure>>) -> Result<T, TurnFailure> {
    let ended = caught(stages).await;
    ended.unwrap_or_else(|error| Err(hook_failure(PipelineStage::Turn, PIPELINE, error)))
}

/// Returns the name of a plugin, or `unnamed` if the plugin panics.
pub fn plugin_name(plugin: &dyn Plugin) -> String {
    caught(async { plugin.name().to_owned() }).now_or_never().and_then(Result::ok).unwrap_or_else(|| UNNAMED.to_owned())
}

/// Returns [`Plugin::keeps_text`], or the safe `false` if the plugin panics.
pub fn keeps_text(plugin: &dyn Plugin) -> bool {
    caught(async { plugin.keeps_text() }).now_or_never().and_then(Result::ok).unwrap_or(false)
}

/// Runs work that may panic. The work must include the call itself, not only the future that the call returns.
async fn caught<T>(work: impl Future<Output = T>) -> Result<T, HookError> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| panic_error(&*panic))
}

fn hook_failure(stage: PipelineStage, plugin: &str, error: HookError) -> TurnFailure {
    TurnFailure::Hook { stage, plugin: plugin.to_owned(), trouble: error }
}

fn panic_error(panic: &(dyn Any + Send)) -> HookError {
    let message = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    HookError::new("internal_error", format!("panicked: {}", message.unwrap_or("no message")))
}
