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
    pub(super) async fn see(&self, sessions: &[&SessionKey]) -> Done<Vec<Sight>> {
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        let mut asked = Pipeline::with_capacity(sessions.len() + 1);
        asked.cmd("TIME");
        for session in sessions {
            asked.cmd("HMGET").arg(key::own(session)).arg("n").arg("i").arg("e");
        }
        let mut answers = self.values(&asked).await?.into_iter();
        let time = Answer::of(answers.next().unwrap_or(Value::Nil))?.time()?;
        let now = if self.clock.is_some() { self.now() } else { time };
        let mut seen = Vec::with_capacity(sessions.len());
        for answer in answers {
            seen.push(Sight { by: Answer::of(answer)?.owner()?, is_left: false, now });
        }
        let mut asked = Pipeline::new();
        for (session, _) in sessions.iter().zip(&seen).filter(|(_, seen)| seen.by.holder.is_none()) {
            asked.cmd("XLEN").arg(key::inbox(session)).cmd("XLEN").arg(key::control(session));
        }
        let lengths = self.values(&asked).await?;
        let free = seen.iter_mut().filter(|seen| seen.by.holder.is_none());
        for (seen, lengths) in free.zip(lengths.chunks(2)) {
            seen.is_left = lengths.iter().any(|length| *length != Value::Int(0));
        }
        Ok(seen)
    }
}
