//! Serves `POST /v1/chat/completions`: a turn, answered in OpenAI's format. A call that names neither itself nor a
//! session is cancelled when its connection ends. A call with either name continues, since its client can return to it.
use crate::answer::{self, Body};
use crate::door::Admitted;
use crate::http::guest::{Guest, Parted, Unanswered};
use crate::http::openai::fault::Fault;
use crate::http::openai::{Answer, LongCalls};
use crate::http::problem::Problem;
use crate::http::stream::{self, Story};
use crate::http::{Desk, intake};
use crate::phase::Phase;
use crate::socket::Watch;
use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use hyper::body::Body as _;
use std::sync::Arc;
use std::time::Duration;
use turnway_bindings::channel::command::{Command, Target};
use turnway_bindings::channel::note::{Accepted, Note};
use turnway_bindings::channel::openai::{CALL_BYTES_MAX, Call, Chunks, Head, Name, Trouble, Whole};
use turnway_core::id::{EventId, MessageId, RunId, SessionId};
use turnway_core::limits::{MESSAGE_BYTES_MAX, STORE_RETRY_AFTER};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::Millis;

/// Header of the session to continue; also sent with every answer.
const SESSION: &str = "x-session-id";
/// Header with the id of a call that may be repeated.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Header of W3C Trace Context.
const TRACEPARENT: &str = "traceparent";
/// Header by which OpenAI clients identify an answer; its value is the run id.
const REQUEST: HeaderName = HeaderName::from_static("x-request-id");

/// Longest wait of a streamed answer for the first text before its status is sent, so that an early failure gets an
/// error status. An unavailable agent is known at once, and no client waits long for the headers.
const HEAD_WAIT: Duration = Duration::from_secs(2);

/// The response options of a call.
struct Wanted {
    stream: bool,
    include_usage: bool,
    head: Head,
    run_id: RunId,
    /// True if the call has an idempotency key and may be repeated.
    named: bool,
}

pub(super) async fn create(
    State(desk): State<Arc<Desk>>,
    Extension(long_calls): Extension<LongCalls>,
    watch: Option<Extension<Watch>>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let admitted = desk.admit(&headers).await.map_err(|problem| Fault::from(problem).unread())?;
    let call = read(&long_calls, &headers, body).await?;
    if !desk.directory.agents.contains_key(&call.agent) {
        return Err(Trouble::no_model().into());
    }
    if desk.life.phase() >= Phase::Draining {
        return Err(Problem::draining().into());
    }
    let now = desk.clock.now().store;
    let key = header(&headers, IDEMPOTENCY_KEY, MessageId::parse)?;
    let session = header(&headers, SESSION, SessionId::parse)?;
    let named = key.is_some();
    // Until the call is known to be accepted, a repeat is harmless if the call has a name, or if it ends with its
    // connection.
    let repeatable = named || session.is_none();
    let name = name(&desk, &admitted, session, key, fresh(now)?).await?;
    let wanted = Wanted {
        stream: call.stream,
        include_usage: call.include_usage,
        head: Head::new(&name.run_id, &call.agent, now),
        run_id: name.run_id.clone(),
        named,
    };
    let trace = intake::header(&headers, TRACEPARENT).ok().flatten().map(str::to_owned);
    let invoke = call.invoke(&name, trace)?;
    let mut guest = Guest::enter(Arc::clone(&desk), admitted.clone()).await?;
    guest.set_watch(watch.map(|Extension(watch)| watch));
    if name.once {
        let target = Target::Run(name.run_id.clone());
        guest.on_hang_up(Command::Cancel { request_id: None, target, receipt: false });
    }
    let accepted = match guest.invoke(invoke).await {
        Ok(accepted) => accepted,
        Err(why) => {
            if matches!(why, Unanswered::Refused(_)) {
                guest.settle();
            }
            return Err(Fault::unanswered(why, repeatable));
        }
    };
    let answer = if wanted.stream {
        streamed(guest, admitted, wanted, &accepted).await
    } else {
        at_once(guest, wanted).await
    };
    // A failed turn is identified too.
    let mut response = answer.unwrap_or_else(Fault::into_response);
    for (header, text) in
        [(HeaderName::from_static(SESSION), name.session.as_str()), (REQUEST, name.run_id.as_str())]
    {
        // Session ids and run ids are always valid header values.
        if let Ok(value) = HeaderValue::from_str(text) {
            response.headers_mut().insert(header, value);
        }
    }
    Ok(response)
}

/// Determines the session and the turn of a call. The naming secret is needed only if the call names no session.
async fn name(
    desk: &Desk,
    admitted: &Admitted,
    session: Option<SessionId>,
    call: Option<MessageId>,
    fresh: EventId,
) -> Result<Name, Fault> {
    let principal = &admitted.principal;
    if let Some(session) = session {
        return Ok(Name::within(principal, session, call, fresh));
    }
    let key = desk.call_names.key().await.map_err(|why| {
        tracing::warn!(%why, "cannot derive the session of a call");
        let refusal = Refusal::new(Code::StoreUnavailable, "the store is unavailable");
        Fault::from(Trouble::from(&refusal.retry_after(STORE_RETRY_AFTER)))
    })?;
    Ok(Name::alone(principal, call, fresh, |call| key.session_of(principal, call)))
}

/// Reads a call; one larger than a channel message only while a slot is free.
async fn read(long_calls: &LongCalls, headers: &HeaderMap, body: Body) -> Result<Call, Fault> {
    let short = body.size_hint().upper().is_some_and(|bytes| bytes <= MESSAGE_BYTES_MAX as u64);
    let room = if short { None } else { Some(long_calls.try_acquire()) };
    if planted(Planted::LongCallPlaceLost)
        && let Some(Ok(place)) = room
    {
        place.forget();
    } else if matches!(room, Some(Err(_))) {
        let refusal = Refusal::new(Code::RateLimited, "too many long requests are being read");
        return Err(Fault::from(Trouble::from(&refusal.retry_after(STORE_RETRY_AFTER))).unread());
    }
    let text = intake::json_within(headers, body, CALL_BYTES_MAX).await;
    Ok(Call::parse(&text.map_err(|problem| Fault::from(problem).unread())?)?)
}

/// Returns a new id, for a call that did not name itself.
fn fresh(now: Millis) -> Result<EventId, Fault> {
    let mut chance = [0; 16];
    getrandom::fill(&mut chance).map_err(|_| Trouble::new(Code::InternalError, "no random bytes available"))?;
    Ok(EventId::new(now, u128::from_be_bytes(chance)))
}

/// Parses a header as a name, if present.
fn header<T, E: std::fmt::Display>(
    headers: &HeaderMap,
    name: &'static str,
    parse: fn(&str) -> Result<T, E>,
) -> Result<Option<T>, Fault> {
    let text = intake::header(headers, name)?;
    let parsed = text.map(|text| parse(text).map_err(|why| Trouble::field(name, format!("{name}: {why}"))));
    Ok(parsed.transpose()?)
}

async fn at_once(mut guest: Guest, wanted: Wanted) -> Answer {
    let mut whole = Whole::new(wanted.head, wanted.run_id);
    let watch = guest.watch().filter(|_| guest.ends_with_its_client());
    let hung_up = async move {
        match watch {
            Some(watch) => watch.hung_up().await,
            None => std::future::pending().await,
        }
    };
    let mut hung_up = std::pin::pin!(hung_up);
    loop {
        match whole.answer() {
            None => {
                let heard = tokio::select! {
                    biased;
                    heard = guest.hear() => heard,
                    // The client has disconnected, so this error is sent to no one.
                    () = hung_up.as_mut() => Err(Parted::Leaving),
                };
                whole.show(&heard.map_err(|parted| cut_off(parted, wanted.named))?);
            }
            Some(answer) => {
                guest.settle();
                return Ok(answer::of(StatusCode::OK, "application/json", answer?));
            }
        }
    }
}

async fn streamed(mut guest: Guest, admitted: Admitted, wanted: Wanted, accepted: &Accepted) -> Answer {
    let Wanted { include_usage, head, run_id, named, .. } = wanted;
    let mut chunks = Chunks::new(head.clone(), run_id.clone(), 0, include_usage);
    if accepted.duplicate {
        chunks = match present_attempt(&guest, admitted, accepted).await? {
            Some(attempt) => Chunks::new(head, run_id, attempt, include_usage),
            None => chunks.from_its_end(),
        };
    }
    let mut first = String::new();
    let begun = tokio::time::timeout(HEAD_WAIT, async {
        while !chunks.has_begun() && !chunks.is_over() {
            let note = guest.hear().await?;
            chunks.show(&note, &mut first);
        }
        Ok::<_, Parted>(())
    });
    match begun.await {
        Ok(begun) => begun.map_err(|parted| cut_off(parted, named))?,
        Err(_) => chunks.open(&mut first),
    }
    if chunks.is_over() {
        guest.settle();
    }
    match chunks.trouble() {
        Some(trouble) => Err(trouble.clone().into()),
        None => Ok(stream::answer(guest, chunks, first)),
    }
}

/// Returns the error for a link that ended after the turn was accepted and before its end.
fn cut_off(parted: Parted, named: bool) -> Fault {
    Fault::unanswered(Unanswered::Parted(parted), named)
}

/// Returns the present attempt of an open turn. Text of earlier attempts is not sent again: a client that repeats a
/// call has discarded what it had.
async fn present_attempt(
    guest: &Guest,
    admitted: Admitted,
    accepted: &Accepted,
) -> Result<Option<u32>, Fault> {
    let mut look = Guest::enter(guest.desk_handle(), admitted).await?;
    look.say(Command::Look { request_id: None, session: accepted.session.clone() }).await?;
    let snapshot = look.answer(|note| match note {
        Note::Opened { snapshot, .. } => Some(snapshot),
        Note::Fact { .. }
        | Note::Delta { .. }
        | Note::Accepted(_)
        | Note::Subscribed { .. }
        | Note::Closed { .. }
        | Note::Members(_)
        | Note::Handover(_)
        | Note::CancelTaken { .. }
        | Note::Printed { .. }
        | Note::Listed { .. }
        | Note::Deleted { .. }
        | Note::Found { .. }
        | Note::Refused { .. }
        | Note::GoAway { .. } => None,
    });
    let snapshot = snapshot.await.map_err(|why| Fault::unanswered(why, true))?;
    Ok(snapshot.runs.iter().find(|run| run.run_id == accepted.run_id).map(|run| run.attempt))
}

impl Story for Chunks {
    fn show(&mut self, _: Millis, note: &Note, to: &mut String) {
        Chunks::show(self, note, to);
    }
    fn is_over(&self) -> bool {
        Chunks::is_over(self)
    }
    fn part(&mut self, parted: Parted, to: &mut String) {
        let Fault { trouble, .. } = parted.into();
        Chunks::part(self, trouble, to);
    }
}
