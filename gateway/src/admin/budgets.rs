//! Serves `GET /v1/budgets?tenant=…`, `PUT /v1/budgets` and `POST /v1/budgets:remove`: limits of calls of models, for
//! operators. A tenant's own credentials cannot change them.
use super::json_body::{AdminRefusal, bad_request, read_json};
use crate::models::budget::keeper::BudgetKeeper;
use crate::models::budget::{
    BudgetAccount, BudgetError, BudgetKind, BudgetLimits, BudgetPeriod, BudgetTotals, BudgetView,
};
use crate::response::{self, Body};
use bytes::Buf;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use std::error::Error;
use turnway_core::id::TenantId;
use turnway_core::limits;
use turnway_core::protocol::refusal::{Code, Refusal};

/// Path of the collection of budgets.
pub(super) const PATH: &str = "/v1/budgets";
/// Path that removes one.
pub(super) const REMOVE_PATH: &str = "/v1/budgets:remove";

/// The handler that shows and changes budgets; it refuses until the store is open.
#[derive(Clone)]
pub struct BudgetAdmin(Option<BudgetKeeper>);

/// The account that a request names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccountRequest {
    tenant: Option<String>,
    kind: BudgetKind,
    /// The id of the key, user or agent.
    name: Option<String>,
}

/// The body of a request that sets limits.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetBudgetRequest {
    tenant: Option<String>,
    kind: BudgetKind,
    name: Option<String>,
    tokens: Option<u64>,
    cost: Option<u64>,
    period: BudgetPeriod,
}

/// A budget of one account.
#[derive(Serialize)]
struct BudgetPayload<'a> {
    tenant: &'a TenantId,
    kind: BudgetKind,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    period: BudgetPeriod,
    used: BudgetTotals,
    reserved: BudgetTotals,
    open_calls: usize,
    overdraft: BudgetTotals,
    overdraft_calls: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_cost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    period_ends_ts: Option<u64>,
}

#[derive(Serialize)]
struct BudgetListPayload<'a> {
    budgets: Vec<BudgetPayload<'a>>,
}

type BudgetResult = Result<Response<Body>, AdminRefusal>;

// === impl BudgetAdmin ===

impl BudgetAdmin {
    /// Creates the handler of these budgets; `None` until the store is open.
    pub fn new(budgets: Option<BudgetKeeper>) -> Self {
        Self(budgets)
    }

    fn budgets(&self) -> Result<&BudgetKeeper, BudgetError> {
        self.0.as_ref().ok_or(BudgetError::Unavailable)
    }

    /// Answers a request for one of these paths.
    pub(super) async fn answer<B>(&self, head: &http::request::Parts, body: B) -> Response<Body>
    where
        B: BodyExt<Data: Buf, Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        let answer = match head.method {
            Method::PUT => self.set(&head.headers, body).await,
            Method::POST => self.remove(&head.headers, body).await,
            _ => self.list(head.uri.query().unwrap_or_default()).await,
        };
        answer.unwrap_or_else(|AdminRefusal(status, refusal)| response::refused(status, &refusal))
    }

    async fn list(&self, query: &str) -> BudgetResult {
        let mut tenant = None;
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if name != "tenant" || tenant.replace(value.into_owned()).is_some() {
                return Err(bad_request("the query may have `tenant`, once, and nothing else"));
            }
        }
        let tenant = parse_tenant(tenant)?;
        let all = self.budgets()?.list(&tenant).await?;
        let budgets = all.iter().map(|(account, view)| BudgetPayload::new(account, view)).collect();
        Ok(response::json(StatusCode::OK, &BudgetListPayload { budgets }))
    }

    async fn set<B>(&self, headers: &HeaderMap, body: B) -> BudgetResult
    where
        B: BodyExt<Data: Buf, Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        let SetBudgetRequest { tenant, kind, name, tokens, cost, period } = read_json(headers, body).await?;
        if tokens.is_none() && cost.is_none() {
            return Err(bad_request("expected `tokens`, `cost` or both"));
        }
        let account = parse_account(AccountRequest { tenant, kind, name })?;
        let budgets = self.budgets()?;
        budgets.set(&account, Some(BudgetLimits { tokens, cost, period })).await?;
        tracing::info!(tenant = account.tenant.as_str(), kind = kind.as_str(), "budget set by an operator");
        let view = budgets.show(&account).await?.ok_or(BudgetError::Busy)?;
        Ok(response::json(StatusCode::OK, &BudgetPayload::new(&account, &view)))
    }

    async fn remove<B>(&self, headers: &HeaderMap, body: B) -> BudgetResult
    where
        B: BodyExt<Data: Buf, Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        let account = parse_account(read_json(headers, body).await?)?;
        let budgets = self.budgets()?;
        let view = budgets.show(&account).await?;
        let Some(view) = view else {
            let refusal = Refusal::new(Code::NotFound, "the account has no budget");
            return Err(AdminRefusal(StatusCode::NOT_FOUND, refusal));
        };
        budgets.set(&account, None).await?;
        tracing::info!(tenant = account.tenant.as_str(), kind = account.kind.as_str(), "budget removed by an operator");
        Ok(response::json(StatusCode::OK, &BudgetPayload::new(&account, &view)))
    }
}

fn parse_tenant(name: Option<String>) -> Result<TenantId, AdminRefusal> {
    let Some(name) = name else { return Ok(TenantId::default_tenant()) };
    TenantId::parse(&name).map_err(|error| bad_request(error.to_string()))
}

fn parse_account(request: AccountRequest) -> Result<BudgetAccount, AdminRefusal> {
    let AccountRequest { tenant, kind, name } = request;
    let account = BudgetAccount { tenant: parse_tenant(tenant)?, kind, name: name.unwrap_or_default() };
    account.check()?;
    Ok(account)
}

impl<'a> BudgetPayload<'a> {
    fn new(account: &'a BudgetAccount, view: &BudgetView) -> Self {
        let BudgetAccount { tenant, kind, name } = account;
        let BudgetLimits { tokens, cost, period } = view.limits;
        Self {
            tenant,
            kind: *kind,
            name,
            tokens,
            cost,
            period,
            used: view.settled,
            reserved: view.reserved,
            open_calls: view.open_calls,
            overdraft: view.overdraft,
            overdraft_calls: view.overdraft_calls,
            remaining_tokens: view.remaining_tokens,
            remaining_cost: view.remaining_cost,
            period_ends_ts: view.period_end.map(|end| end.0),
        }
    }
}

impl From<BudgetError> for AdminRefusal {
    fn from(error: BudgetError) -> Self {
        let why = error.to_string();
        match error {
            BudgetError::Unavailable | BudgetError::Busy => {
                let refusal = Refusal::new(Code::StoreUnavailable, why).retry_after(limits::STORE_RETRY_AFTER);
                Self(StatusCode::SERVICE_UNAVAILABLE, refusal)
            }
            BudgetError::Unreadable => Self(StatusCode::INTERNAL_SERVER_ERROR, Refusal::new(Code::InternalError, why)),
            BudgetError::TooManyAccounts => Self(StatusCode::CONFLICT, Refusal::new(Code::TooLarge, why)),
            BudgetError::BadAccount => bad_request(why),
        }
    }
}
