//! The stage in which the model answers, streamed or not.
use crate::failure::{Failure, Stage};
use crate::limits;
use crate::pipeline::{Inner, NoOutput, call};
use crate::plugin::Turn;
use crate::prompt::Prompt;
use crate::stream::{self, Piece, Pieces};
use futures_util::{FutureExt, StreamExt};
use std::panic::AssertUnwindSafe;

impl Inner {
    /// Gets the output of the model. If no plugin gives one, observers are told, and the configured substitute is
    /// used (TP-M7, TP-M8).
    pub(super) async fn run_model(&self, turn: &mut Turn, prompt: &Prompt) -> Result<(), Failure> {
        let router = self.router.as_ref().filter(|router| router.streams(&turn.inbound.envelope));
        let Some(mut pieces) = self.pieces(turn, prompt, router.is_some()).await? else {
            self.tell(Stage::RunModel, &Failure::NoOutput, &turn.inbound.envelope).await;
            if self.no_output == NoOutput::Echo {
                turn.output = match prompt {
                    Prompt::Text(text) => text.clone(),
                    Prompt::Parts(_) => turn.inbound.envelope.content.clone(),
                };
            }
            return Err(Failure::NoOutput);
        };
        for plugin in self.plugins.iter().rev() {
            let adapted = std::panic::catch_unwind(AssertUnwindSafe(|| plugin.adapt_stream(turn, pieces)));
            pieces = adapted.map_err(|panic| call::broken(Stage::RunModel, plugin.name(), &*panic))?;
        }
        if let Some(router) = router {
            pieces = router.wrap(turn, pieces);
            turn.streamed = true;
        }
        self.gather(turn, pieces).await
    }

    /// Returns the model's answer. Each plugin is asked for the wanted form and then for the other one, before the
    /// next plugin is asked: a plugin that is registered later wins with either form (TP-M4, TP-M5, TP-N14). No
    /// stream means no answer, whichever form was wanted (TP-M6).
    async fn pieces(&self, turn: &Turn, prompt: &Prompt, streams: bool) -> Result<Option<Pieces>, Failure> {
        for plugin in &self.plugins {
            for is_stream in [streams, !streams] {
                let pieces = if is_stream {
                    call::hook(Stage::RunModel, &**plugin, |it| it.run_model_stream(turn, prompt)).await?
                } else {
                    let hook = call::hook(Stage::RunModel, &**plugin, |it| it.run_model(turn, prompt));
                    hook.await?.map(stream::whole)
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
    async fn gather(&self, turn: &mut Turn, mut pieces: Pieces) -> Result<(), Failure> {
        let mut last = None;
        loop {
            let piece = match AssertUnwindSafe(pieces.next()).catch_unwind().await {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(panic) => return Err(call::broken(Stage::RunModel, "stream", &*panic)),
            };
            last = None;
            match piece {
                Piece::Text(text) if turn.output.len() + text.len() > limits::OUTPUT_BYTES_MAX => {
                    return Err(Failure::TooLarge("the output of one turn"));
                }
                Piece::Text(text) => turn.output.push_str(&text),
                Piece::Error(trouble) => {
                    let failure = Failure::Told(trouble);
                    self.tell(Stage::RunModel, &failure, &turn.inbound.envelope).await;
                    last = Some(failure);
                }
                Piece::Other(..) => {}
            }
        }
        last.map_or(Ok(()), Err)
    }
}
