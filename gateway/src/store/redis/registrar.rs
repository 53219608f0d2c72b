//! Writing sessions into the indexes that sweeps look at, before anything that a sweep has to find. What is registered
//! in the same moment goes in one call: a node that takes over what another one had registers hundreds at once.
use crate::redis::Line;
use crate::store::redis::call::{Call, Trouble};
use crate::store::redis::desk::{Desk, Done};
use crate::store::redis::key;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::oneshot;
use turnway_core::id::{Holder, SessionKey};
use turnway_core::limits;

/// Sessions in one call: some 2 us each, and nobody else is served meanwhile.
const TOGETHER_MAX: usize = limits::SWEEP_SESSIONS_MAX as usize;

/// A session, and who waits for its stamp.
type Wish = (SessionKey, oneshot::Sender<Done<u64>>);

/// What is to be registered, by incarnation. Not bounded by a number of its own: each is a part of one op, and the store
/// takes no more than [`limits::STORE_QUEUE_MAX`] of them.
#[derive(Debug, Default)]
pub(super) struct Registrar(Mutex<BTreeMap<Holder, Vec<Wish>>>);

/// Who has wished first sees to all that gathers. Whoever gives up before that takes what has gathered with him: it was not
/// done, and the next to wish is the first again.
struct Turn<'a> {
    registrar: &'a Registrar,
    holder: Holder,
    is_over: bool,
}

// === impl Registrar ===

impl Registrar {
    /// Adds a wish; a turn, where it is the first.
    fn add(&self, holder: Holder, wish: Wish) -> Option<Turn<'_>> {
        let mut wishes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wishes = wishes.entry(holder).or_default();
        wishes.push(wish);
        (wishes.len() == 1).then(|| Turn { registrar: self, holder, is_over: false })
    }

    fn take(&self, holder: Holder) -> Vec<Wish> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&holder).unwrap_or_default()
    }
}

// === impl Turn ===

impl Turn<'_> {
    fn take(mut self) -> Vec<Wish> {
        self.is_over = true;
        self.registrar.take(self.holder)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            drop(self.registrar.take(self.holder));
        }
    }
}

// === impl Desk ===

impl Desk {
    /// Writes a session into an incarnation's index, and returns when that was. Nothing that a sweep has to
    /// find may go out before this is answered.
    pub(super) async fn register(&self, session: &SessionKey, holder: Holder) -> Done<u64> {
        let (tell, told) = oneshot::channel();
        if let Some(turn) = self.registrar.add(holder, (session.clone(), tell)) {
            // Ops that set out in the same moment are on their way here.
            tokio::task::yield_now().await;
            self.register_all(holder, turn.take()).await;
        }
        // Whoever saw to it has given up.
        told.await.unwrap_or(Err(Trouble::NotDone))
    }

    async fn register_all(&self, holder: Holder, mut wishes: Vec<Wish>) {
        while !wishes.is_empty() {
            let rest = wishes.split_off(wishes.len().min(TOGETHER_MAX));
            let sessions: Vec<&SessionKey> = wishes.iter().map(|(session, _)| session).collect();
            let stamps = self.register_some(holder, &sessions).await;
            for (n, (_, tell)) in wishes.into_iter().enumerate() {
                let stamp = match &stamps {
                    Ok(stamps) => stamps.get(n).copied().ok_or(Trouble::Doubt),
                    Err(trouble) => Err(*trouble),
                };
                // Nobody waits for it any more.
                let _ = tell.send(stamp);
            }
            wishes = rest;
        }
    }

    async fn register_some(&self, holder: Holder, sessions: &[&SessionKey]) -> Done<Vec<u64>> {
        if !self.book().is_enrolled(holder) {
            self.enroll(&self.commands, holder).await?;
        }
        let call = Call::to("register", [key::registered(holder)]).number(self.now());
        let call = sessions.iter().fold(call, |call, session| call.text(&session.to_string()));
        let mut answer = self.call(call).await?;
        let stamps = sessions.iter().map(|_| answer.number()).collect::<Done<Vec<u64>>>()?;
        let mut book = self.book();
        sessions.iter().zip(&stamps).for_each(|(session, stamp)| book.register(session, holder, *stamp));
        Ok(stamps)
    }

    /// Makes an incarnation known to sweeps.
    pub(super) async fn enroll(&self, line: &Line, holder: Holder) -> Done<u64> {
        let call = Call::to("enroll", [key::LIVES]).number(self.now()).text(&key::life(holder));
        let stamp = self.call_on(line, call).await?.number()?;
        self.book().enroll(holder);
        Ok(stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::id::{SessionId, TenantId};

    #[test]
    fn who_gives_up_his_turn_leaves_nobody_waiting() {
        let key = || SessionKey {
            tenant: TenantId::default_tenant(),
            session: SessionId::parse("s").expect("a name"),
        };
        let (registrar, holder) = (Registrar::default(), Holder::default());
        let (first, second, third) = (oneshot::channel(), oneshot::channel(), oneshot::channel());
        let turn = registrar.add(holder, (key(), first.0)).expect("the first");
        assert!(registrar.add(holder, (key(), second.0)).is_none());
        drop(turn);
        let mut waits = second.1;
        assert_eq!(waits.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let turn = registrar.add(holder, (key(), third.0)).expect("the first again");
        assert_eq!(turn.take().len(), 1);
        assert!(registrar.take(holder).is_empty());
    }
}
