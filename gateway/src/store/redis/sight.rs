//! Looking at many sessions, who may be anybody's, without asking for anything.
//!
//! No function of ours is needed for it, and Redis's own commands take a sixth of the time. What is seen of one session need
//! not be of one moment, as whoever is to have it claims it, and that finds out. But the clock is read first: a registration
//! that was old by then is one that nothing leans on any more when its session is looked at.
use crate::store::redis::answer::Answer;
use crate::store::redis::desk::{Desk, Done};
use crate::store::redis::key;
use ::redis::{Pipeline, Value};
use turnway_core::id::{Seen, SessionKey};

/// What was seen of a session, and when, by the store's clock.
pub(super) struct Sight {
    pub(super) by: Seen,
    /// Nobody holds it, and something lies in it.
    pub(super) is_left: bool,
    pub(super) now: u64,
}

impl Desk {
    /// None: what is there cannot be read. It is nobody's to take on, and holds up nothing else.
    pub(super) async fn see(&self, sessions: &[&SessionKey]) -> Done<Vec<Option<Sight>>> {
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        let mut asked = Pipeline::with_capacity(sessions.len() + 1);
        asked.cmd("TIME");
        for session in sessions {
            asked.cmd("HMGET").arg(key::own(session)).arg("n").arg("i").arg("e");
        }
        let mut answers = self.values(&asked).await?.into_iter();
        let time = Answer::of(answers.next().flatten().unwrap_or(Value::Nil))?.time()?;
        let now = if self.clock.is_some() { self.now() } else { time };
        let sight = |answer| Some(Sight { by: Answer::of(answer).ok()?.owner().ok()?, is_left: false, now });
        let mut seen: Vec<Option<Sight>> = answers.map(|answer| answer.and_then(sight)).collect();
        self.see_what_is_left(sessions, &mut seen).await?;
        for (session, _) in sessions.iter().zip(&seen).filter(|(_, seen)| seen.is_none()) {
            tracing::warn!(%session, "what Redis has of this session cannot be read; it is passed over");
        }
        Ok(seen)
    }

    /// Whether something lies in those that nobody holds.
    async fn see_what_is_left(&self, sessions: &[&SessionKey], seen: &mut [Option<Sight>]) -> Done<()> {
        let free = |seen: &Option<Sight>| seen.as_ref().is_some_and(|seen| seen.by.holder.is_none());
        let mut asked = Pipeline::new();
        for (session, _) in sessions.iter().zip(seen.iter()).filter(|(_, seen)| free(seen)) {
            asked.cmd("XLEN").arg(key::inbox(session)).cmd("XLEN").arg(key::control(session));
        }
        let lengths = self.values(&asked).await?;
        for (seen, lengths) in seen.iter_mut().filter(|seen| free(seen)).zip(lengths.chunks(2)) {
            if lengths.contains(&None) {
                *seen = None;
            } else if let Some(seen) = seen {
                seen.is_left = lengths.iter().flatten().any(|length| *length != Value::Int(0));
            }
        }
        Ok(())
    }
}
