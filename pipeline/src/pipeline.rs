//! The pipeline: the registered plugins, and the execution of one turn through all stages.
mod call;
mod model;

pub use call::{keeps_text, plugin_name};

use crate::envelope::MessageEnvelope;
use crate::failure::{HookError, PipelineStage, TurnFailure};
use crate::limits;
use crate::plugin::{DispatchOutbound, Dispatcher, Inbound, Plugin, Router, TapeStore, Turn};
use crate::prompt::Prompt;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::task::JoinError;

/// Name of the router in failures and logs.
const ROUTER: &str = "router";

/// The substitute for the output of a model that gives none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoOutputPolicy {
    /// An error message, marked as an error: what a gateway does (RX-12).
    #[default]
    Error,
    /// The prompt itself, or the message's text for a prompt of several parts (TP-M9, TP-M10): for development.
    Echo,
}

/// The plugins of a host, in the order of their registration.
#[derive(Clone)]
pub struct Pipeline(Arc<PipelineInner>);

#[derive(Clone)]
struct PipelineInner {
    /// Plugins in the order in which they are asked: the one registered last comes first (TP-N14).
    plugins: Vec<Arc<dyn Plugin>>,
    router: Option<Arc<dyn Router>>,
    workspace: PathBuf,
    no_output: NoOutputPolicy,
}

/// The outcome of a turn.
#[derive(Clone, Debug)]
pub struct PipelineOutcome {
    /// The turn at its end.
    pub turn: Turn,
    /// Messages that were sent.
    pub outbound: Vec<MessageEnvelope>,
    /// Number of messages that a plugin or the router reports as delivered.
    pub delivered: usize,
}

// === impl Pipeline ===

impl Pipeline {
    /// Creates a pipeline without plugins, for a workspace.
    pub fn new(workspace: impl Into<PathBuf>) -> Self {
        let workspace = workspace.into();
        Self(Arc::new(PipelineInner {
            plugins: Vec::new(),
            router: None,
            workspace,
            no_output: NoOutputPolicy::default(),
        }))
    }

    /// Registers a plugin, which is asked before those already registered (TP-N14).
    #[must_use]
    pub fn with(self, plugin: impl Plugin + 'static) -> Self {
        self.with_shared(Arc::new(plugin))
    }

    /// Registers a plugin that is shared with other owners.
    #[must_use]
    pub fn with_shared(mut self, plugin: Arc<dyn Plugin>) -> Self {
        Arc::make_mut(&mut self.0).plugins.insert(0, plugin);
        self
    }

    /// Sets the router that delivers messages.
    #[must_use]
    pub fn with_router(mut self, router: impl Router + 'static) -> Self {
        Arc::make_mut(&mut self.0).router = Some(Arc::new(router));
        self
    }

    /// Sets the substitute for the output of a model that gives none.
    #[must_use]
    pub fn with_no_output_policy(mut self, no_output: NoOutputPolicy) -> Self {
        Arc::make_mut(&mut self.0).no_output = no_output;
        self
    }

    /// Executes one turn, from a message to the messages that answer it.
    ///
    /// The turn runs in a task of its own: dropping the future cancels the turn, and its state is saved all the same.
    /// A failure is logged and passed to [`on_error`](Plugin::on_error) before it is returned (TP-E1 to TP-E3).
    pub async fn process(&self, inbound: Inbound) -> Result<PipelineOutcome, TurnFailure> {
        let cancels = inbound.cancel.clone().drop_guard();
        let inner = Arc::clone(&self.0);
        let ended = tokio::spawn(async move { inner.run_turn(inbound).await }).await;
        cancels.disarm();
        ended.unwrap_or_else(|lost| Err(task_panicked(&lost)))
    }
}

/// Returns the failure for a panic outside of the calls of plugins, which catch each panic of their own: a bug of the
/// pipeline, or a value of a plugin that panics when it is dropped.
fn task_panicked(lost: &JoinError) -> TurnFailure {
    let error = HookError::new("internal_error", lost.to_string());
    TurnFailure::Hook { stage: PipelineStage::Turn, plugin: call::PIPELINE.to_owned(), trouble: error }
}

// === impl PipelineInner ===

impl PipelineInner {
    async fn run_turn(&self, mut inbound: Inbound) -> Result<PipelineOutcome, TurnFailure> {
        let ended = self.run_stages(&mut inbound).await;
        if let Err(failure) = &ended {
            let session = inbound.envelope.session_id.as_deref();
            // Logs the place but not the message, which may be a plugin's and contain content of a conversation.
            let code = failure.code();
            let place = failure.location();
            match failure {
                TurnFailure::Cancelled | TurnFailure::Refused(_) => {
                    tracing::info!(session, code, place, "turn refused or cancelled");
                }
                TurnFailure::Hook { .. }
                | TurnFailure::NoOutput
                | TurnFailure::ModelError(_)
                | TurnFailure::TooLarge(_) => {
                    tracing::error!(session, code, place, "turn failed");
                }
            }
            self.report_failure(PipelineStage::Turn, failure, &inbound.envelope).await;
        }
        ended
    }

    async fn run_stages(&self, inbound: &mut Inbound) -> Result<PipelineOutcome, TurnFailure> {
        let session_id = self.resolve_session(inbound).await?;
        inbound.envelope.session_id = Some(session_id.clone());
        let state = self.load_state(inbound, &session_id).await?;
        let mut turn = Turn {
            inbound: inbound.clone(),
            session_id,
            state,
            system_prompt: None,
            output: String::new(),
            streamed: false,
            failure: None,
            rendered: Vec::new(),
        };
        // From here on the state is saved on every path, once (TP-S1, RX-13).
        let ended = call::run_unwinding(self.answer_or_cancel(&mut turn)).await;
        turn.failure = ended.err();
        let saved = self.save_state(&turn).await;
        match (&turn.failure, saved) {
            (Some(failure), _) if *failure != TurnFailure::NoOutput => Err(failure.clone()),
            (_, Err(failure)) => Err(failure),
            (_, Ok(())) => self.send_outbound(turn).await,
        }
    }

    async fn resolve_session(&self, inbound: &Inbound) -> Result<String, TurnFailure> {
        let is_good = |id: &String| !id.is_empty();
        for plugin in &self.plugins {
            let found =
                call::call_hook(PipelineStage::ResolveSession, &**plugin, |it| it.resolve_session(inbound)).await?;
            if let Some(session_id) = found.filter(is_good) {
                return Ok(session_id);
            }
        }
        Ok(inbound.envelope.fallback_session())
    }

    /// Loads the state: of plugins that set the same key, the one registered later wins (TP-L3 to TP-L5).
    async fn load_state(&self, inbound: &Inbound, session_id: &str) -> Result<Map<String, Value>, TurnFailure> {
        let mut known = Vec::with_capacity(self.plugins.len());
        for plugin in &self.plugins {
            let hook = call::call_hook(PipelineStage::LoadState, &**plugin, |it| it.load_state(inbound, session_id));
            known.push(hook.await?);
        }
        let workspace = self.workspace.display().to_string().into();
        let mut state = Map::from_iter([("_runtime_workspace".to_owned(), workspace)]);
        state.extend(known.into_iter().rev().flatten());
        Ok(state)
    }

    /// Executes the stages from the message to the output; a cancel ends them at any moment.
    async fn answer_or_cancel(&self, turn: &mut Turn) -> Result<(), TurnFailure> {
        let cancel = turn.inbound.cancel.clone();
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(TurnFailure::Cancelled),
            ended = self.answer(turn) => ended,
        }
    }

    async fn answer(&self, turn: &mut Turn) -> Result<(), TurnFailure> {
        for plugin in &self.plugins {
            if let Some(refusal) = call::call_hook(PipelineStage::Admit, &**plugin, |it| it.admit(turn)).await? {
                return Err(TurnFailure::Refused(refusal));
            }
        }
        for plugin in &self.plugins {
            let system_prompt =
                call::call_hook(PipelineStage::BuildPrompt, &**plugin, |it| it.system_prompt(turn)).await?;
            if system_prompt.is_some() {
                turn.system_prompt = system_prompt;
                break;
            }
        }
        let prompt = self.build_prompt(turn).await?;
        self.run_model(turn, &prompt).await
    }

    async fn build_prompt(&self, turn: &Turn) -> Result<Prompt, TurnFailure> {
        for plugin in &self.plugins {
            let built = call::call_hook(PipelineStage::BuildPrompt, &**plugin, |it| it.build_prompt(turn)).await?;
            if let Some(prompt) = built {
                // An empty prompt is an answer too: no other plugin is asked (TP-B4).
                let is_empty = prompt.is_empty();
                return Ok(if is_empty { Prompt::Text(turn.inbound.envelope.content.clone()) } else { prompt });
            }
        }
        Ok(Prompt::Text(turn.inbound.envelope.content.clone()))
    }

    /// Lets every plugin save its state, even after another one failed; the first failure is the turn's.
    async fn save_state(&self, turn: &Turn) -> Result<(), TurnFailure> {
        let mut ended = Ok(());
        for plugin in &self.plugins {
            let saved = call::call_hook(PipelineStage::SaveState, &**plugin, |it| it.save_state(turn)).await;
            if let Err(failure) = &saved {
                let code = failure.code();
                let place = failure.location();
                tracing::error!(code, place, "a plugin failed to save its state");
            }
            ended = ended.and(saved);
        }
        ended.and(self.append_to_tape(turn).await)
    }

    /// Appends two entries of the turn to the tape, the message and its output, if a plugin provides a tape store
    /// (TP-G2).
    async fn append_to_tape(&self, turn: &Turn) -> Result<(), TurnFailure> {
        let Some((whose, tape)) = self.tape_store().await? else { return Ok(()) };
        let ended = turn.failure.as_ref().map(TurnFailure::code);
        let entries = [
            json!({"entry": "message", "message": turn.inbound.envelope}),
            json!({"entry": "output", "text": turn.output, "failure": ended}),
        ];
        let appended = async { tape.append(&turn.session_id, &entries).await };
        call::run_caught(PipelineStage::SaveState, &whose, appended).await
    }

    /// Returns the first tape store that a plugin provides, with the plugin's name.
    async fn tape_store(&self) -> Result<Option<(String, Arc<dyn TapeStore>)>, TurnFailure> {
        for plugin in &self.plugins {
            let provided = call::call_method(PipelineStage::SaveState, &**plugin, |it| it.provide_tape_store());
            if let Some(tape) = provided.await? {
                return Ok(Some((plugin_name(&**plugin), tape)));
            }
        }
        Ok(None)
    }

    async fn send_outbound(&self, mut turn: Turn) -> Result<PipelineOutcome, TurnFailure> {
        for plugin in &self.plugins {
            let rendered =
                call::call_hook(PipelineStage::RenderOutbound, &**plugin, |it| it.render_outbound(&turn)).await?;
            if turn.rendered.len() + rendered.len() > limits::OUTBOUND_MAX {
                return Err(TurnFailure::TooLarge("messages of one turn"));
            }
            turn.rendered.extend(rendered);
        }
        let mut outbound = std::mem::take(&mut turn.rendered);
        if outbound.is_empty() {
            outbound.push(turn.output_message());
        }
        for envelope in outbound.iter_mut().filter(|it| turn.streamed && it.content == turn.output) {
            // A plugin that renders the shown text may forget to set this.
            envelope.streamed = true;
        }
        let mut delivered = 0;
        for envelope in &outbound {
            delivered += usize::from(self.dispatch(envelope).await?);
        }
        Ok(PipelineOutcome { turn, outbound, delivered })
    }

    async fn dispatch(&self, outbound: &MessageEnvelope) -> Result<bool, TurnFailure> {
        let mut is_delivered = false;
        for plugin in &self.plugins {
            let hook = call::call_hook(PipelineStage::DispatchOutbound, &**plugin, |it| it.dispatch_outbound(outbound));
            is_delivered |= hook.await?;
        }
        if let Some(router) = &self.router {
            let delivered = async { router.deliver(outbound).await };
            is_delivered |= call::run_caught(PipelineStage::DispatchOutbound, ROUTER, delivered).await?;
        }
        Ok(is_delivered)
    }

    /// Passes a failure to all plugins, even if one of them fails (TP-E5).
    async fn report_failure(&self, stage: PipelineStage, failure: &TurnFailure, inbound: &MessageEnvelope) {
        let outlet = Dispatcher::to(self);
        for plugin in &self.plugins {
            let reported = call::call_hook(stage, &**plugin, |it| it.on_error(stage, failure, inbound, &outlet)).await;
            if let Err(error) = reported {
                let code = error.code();
                let place = error.location();
                tracing::warn!(code, place, "a plugin's on_error hook failed");
            }
        }
    }
}

impl DispatchOutbound for PipelineInner {
    fn dispatch<'a>(&'a self, outbound: &'a MessageEnvelope) -> BoxFuture<'a, Result<bool, TurnFailure>> {
        self.dispatch(outbound).boxed()
    }
}
