//! The stage in which the model answers, streamed or not.
use crate::failure::{PipelineStage, TurnFailure};
use crate::limits;
use crate::pipeline::{NoOutputPolicy, PipelineInner, ROUTER, call};
use crate::plugin::{Router, Turn};
use crate::prompt::Prompt;
use crate::stream::{self, AnswerPiece, AnswerStream};
use futures_util::StreamExt;

impl PipelineInner {
    /// Gets the output of the model. If no plugin gives one, observers are told, and the configured substitute is
    /// used (TP-M7, TP-M8).
    pub(super) async fn run_model(&self, turn: &mut Turn, prompt: &Prompt) -> Result<(), TurnFailure> {
        let router = self.streaming_router(turn).await?;
        let Some(mut pieces) = self.request_answer(turn, prompt, router.is_some()).await? else {
            self.report_failure(PipelineStage::RunModel, &TurnFailure::NoOutput, &turn.inbound.envelope).await;
            if self.no_output == NoOutputPolicy::Echo {
                turn.output = match prompt {
                    Prompt::Text(text) => text.clone(),
                    Prompt::Parts(_) => turn.inbound.envelope.content.clone(),
                };
            }
            return Err(TurnFailure::NoOutput);
        };
        for plugin in self.plugins.iter().rev() {
            let adapted = call::call_method(PipelineStage::RunModel, &**plugin, |it| it.adapt_stream(turn, pieces));
            pieces = adapted.await?;
        }
        if let Some(router) = router {
            let wrapped = async { Ok(router.wrap_stream(turn, pieces)) };
            pieces = call::run_caught(PipelineStage::RunModel, ROUTER, wrapped).await?;
            turn.streamed = true;
        }
        self.collect_answer(turn, pieces).await
    }

    /// Returns the router if it wants the answer piece by piece.
    async fn streaming_router(&self, turn: &Turn) -> Result<Option<&dyn Router>, TurnFailure> {
        let Some(router) = self.router.as_deref() else { return Ok(None) };
        let work = async { Ok(router.wants_stream(&turn.inbound.envelope)) };
        let wants_stream = call::run_caught(PipelineStage::RunModel, ROUTER, work).await?;
        Ok(wants_stream.then_some(router))
    }

    /// Returns the model's answer. Each plugin is asked for the wanted form and then for the other one, before the
    /// next plugin is asked: a plugin that is registered later wins with either form (TP-M4, TP-M5, TP-N14). No
    /// stream means no answer, whichever form was wanted (TP-M6).
    async fn request_answer(
        &self,
        turn: &Turn,
        prompt: &Prompt,
        streams: bool,
    ) -> Result<Option<AnswerStream>, TurnFailure> {
        for plugin in &self.plugins {
            for is_stream in [streams, !streams] {
                let pieces = if is_stream {
                    call::call_hook(PipelineStage::RunModel, &**plugin, |it| it.run_model_stream(turn, prompt)).await?
                } else {
                    let hook = call::call_hook(PipelineStage::RunModel, &**plugin, |it| it.run_model(turn, prompt));
                    hook.await?.map(stream::single_piece)
                };
                if pieces.is_some() {
                    return Ok(pieces);
                }
            }
        }
        Ok(None)
    }

    /// Collects the pieces to their end. Observers are told of each error among them (TP-M11); an error that no piece
    /// follows is the result of the answer.
    async fn collect_answer(&self, turn: &mut Turn, mut pieces: AnswerStream) -> Result<(), TurnFailure> {
        let mut last = None;
        loop {
            let next = async { Ok(pieces.next().await) };
            let Some(piece) = call::run_caught(PipelineStage::RunModel, "stream", next).await? else { break };
            last = None;
            match piece {
                AnswerPiece::Text(text) if turn.output.len() + text.len() > limits::OUTPUT_BYTES_MAX => {
                    return Err(TurnFailure::TooLarge("the output of one turn"));
                }
                AnswerPiece::Text(text) => turn.output.push_str(&text),
                AnswerPiece::Error(error) => {
                    let failure = TurnFailure::ModelError(error);
                    self.report_failure(PipelineStage::RunModel, &failure, &turn.inbound.envelope).await;
                    last = Some(failure);
                }
                AnswerPiece::Other(..) => {}
            }
        }
        last.map_or(Ok(()), Err)
    }
}
