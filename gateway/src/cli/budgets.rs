//! `turnway budgets …`: shows, sets and removes budgets of calls of models through a node's operators' listener.
use super::http_client::{ANSWER_TIMEOUT, ApiClient, ApiRequest};
use super::key::AdminArgs;
use super::table::{Column, Table};
use super::time_format::format_date;
use super::{CliError, CliExit, write_json, write_stdout};
use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

/// Subcommands of `turnway budgets`.
#[derive(Clone, Debug, Subcommand)]
pub enum BudgetsCommand {
    /// List the budgets of a tenant, with what is used and reserved
    Ls(BudgetListArgs),
    /// Set the limits of an account; what it has used stays
    Set(BudgetSetArgs),
    /// Remove the limits of an account, and forget what it has used
    Rm(BudgetAccountArgs),
}

/// Arguments of `turnway budgets ls`.
#[derive(Clone, Debug, Args)]
pub struct BudgetListArgs {
    /// Tenant of the budgets
    #[arg(long, value_name = "TENANT", default_value = "default")]
    pub tenant: String,
    /// The node to ask.
    #[command(flatten)]
    pub admin_args: AdminArgs,
}

/// Arguments that name an account.
#[derive(Clone, Debug, Args)]
pub struct BudgetAccountArgs {
    /// The account: tenant, user:ID, key:ID or agent:ID
    #[arg(value_name = "ACCOUNT")]
    pub account: String,
    /// Tenant of the account
    #[arg(long, value_name = "TENANT", default_value = "default")]
    pub tenant: String,
    /// The node to ask.
    #[command(flatten)]
    pub admin_args: AdminArgs,
}

/// Arguments of `turnway budgets set`.
#[derive(Clone, Debug, Args)]
pub struct BudgetSetArgs {
    /// The account and its tenant.
    #[command(flatten)]
    pub account: BudgetAccountArgs,
    /// The most tokens of input and output in a period
    #[arg(long, value_name = "N", required_unless_present = "cost")]
    pub tokens: Option<u64>,
    /// The highest cost in a period, in millionths of your currency: 5000000 is 5.00
    #[arg(long, value_name = "N")]
    pub cost: Option<u64>,
    /// When the amounts start again at zero, in UTC
    #[arg(long, value_name = "PERIOD", default_value = "month")]
    pub period: PeriodArg,
}

/// A period as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PeriodArg {
    Day,
    Month,
    Total,
}

#[derive(Deserialize)]
struct BudgetList {
    budgets: Vec<BudgetRow>,
}

/// The fields of a budget that the table shows.
#[derive(Deserialize)]
struct BudgetRow {
    kind: String,
    #[serde(default)]
    name: String,
    tokens: Option<u64>,
    cost: Option<u64>,
    period: String,
    used: AmountRow,
    reserved: AmountRow,
    open_calls: u64,
    period_ends_ts: Option<u64>,
}

#[derive(Deserialize)]
struct AmountRow {
    tokens: u64,
    cost: u64,
}

/// Runs the subcommand.
pub async fn run(command: BudgetsCommand, json: bool) -> Result<CliExit, CliError> {
    match command {
        BudgetsCommand::Ls(args) => list(&args, json).await,
        BudgetsCommand::Set(args) => set(&args, json).await,
        BudgetsCommand::Rm(args) => remove(&args, json).await,
    }
}

async fn ask(admin: &AdminArgs, method: Method, path: &str, body: Option<Value>) -> Result<Value, CliError> {
    let ask = ApiRequest { method, path, credentials: None, body, timeout: ANSWER_TIMEOUT };
    ApiClient::parse(&admin.admin)?.request_json(ask).await
}

async fn list(args: &BudgetListArgs, json: bool) -> Result<CliExit, CliError> {
    let query = form_urlencoded::Serializer::new(String::new()).append_pair("tenant", &args.tenant).finish();
    let answer = ask(&args.admin_args, Method::GET, &format!("/v1/budgets?{query}"), None).await?;
    if json {
        write_json(&answer)?;
        return Ok(CliExit::Success);
    }
    let unexpected = |error| CliError::Failed(format!("the answer has an unexpected format: {error}"));
    let BudgetList { budgets } = serde_json::from_value(answer).map_err(unexpected)?;
    write_stdout(&render_table(&budgets))?;
    Ok(CliExit::Success)
}

async fn set(args: &BudgetSetArgs, json: bool) -> Result<CliExit, CliError> {
    let mut body = account_body(&args.account)?;
    body["tokens"] = args.tokens.into();
    body["cost"] = args.cost.into();
    body["period"] = match args.period {
        PeriodArg::Day => "day",
        PeriodArg::Month => "month",
        PeriodArg::Total => "total",
    }
    .into();
    let answer = ask(&args.account.admin_args, Method::PUT, "/v1/budgets", Some(body)).await?;
    if json {
        write_json(&answer)?;
    } else {
        write_stdout(&format!("the budget of {} is set\n", args.account.account))?;
    }
    Ok(CliExit::Success)
}

async fn remove(args: &BudgetAccountArgs, json: bool) -> Result<CliExit, CliError> {
    let body = account_body(args)?;
    let answer = ask(&args.admin_args, Method::POST, "/v1/budgets:remove", Some(body)).await?;
    if json {
        write_json(&answer)?;
    } else {
        write_stdout(&format!("the budget of {} is removed\n", args.account))?;
    }
    Ok(CliExit::Success)
}

/// Returns the body that names an account.
fn account_body(args: &BudgetAccountArgs) -> Result<Value, CliError> {
    let (kind, name) = match args.account.split_once(':') {
        Some((kind @ ("user" | "key" | "agent"), name)) if !name.is_empty() => (kind, Some(name)),
        None if args.account == "tenant" => ("tenant", None),
        Some(_) | None => {
            return Err(CliError::Usage("expected tenant, user:ID, key:ID or agent:ID".to_owned()));
        }
    };
    Ok(json!({ "tenant": args.tenant, "kind": kind, "name": name }))
}

/// Returns budgets as a table.
fn render_table(budgets: &[BudgetRow]) -> String {
    let mut table = Table::new(vec![
        Column::Left("ACCOUNT"),
        Column::Left("PERIOD"),
        Column::Right("TOKENS USED"),
        Column::Right("OF"),
        Column::Right("COST USED"),
        Column::Right("OF"),
        Column::Right("OPEN"),
        Column::Left("RESERVED"),
        Column::Left("ENDS"),
    ]);
    let shown = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
    for budget in budgets {
        let BudgetRow { kind, name, tokens, cost, period, used, reserved, open_calls, period_ends_ts } = budget;
        let account = if name.is_empty() { kind.clone() } else { format!("{kind}:{name}") };
        table.push_row([
            account,
            period.clone(),
            used.tokens.to_string(),
            shown(*tokens),
            used.cost.to_string(),
            shown(*cost),
            open_calls.to_string(),
            format!("{} tokens, {} cost", reserved.tokens, reserved.cost),
            period_ends_ts.map(format_date).unwrap_or_default(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(account: &str) -> BudgetAccountArgs {
        let admin_args = AdminArgs { admin: String::new() };
        BudgetAccountArgs { account: account.to_owned(), tenant: "t".to_owned(), admin_args }
    }

    #[test]
    fn account_argument_names_a_kind_and_an_id() {
        let body = |account: &str| account_body(&args(account)).ok();
        assert_eq!(body("tenant"), Some(json!({"tenant": "t", "kind": "tenant", "name": null})));
        assert_eq!(body("user:a:b"), Some(json!({"tenant": "t", "kind": "user", "name": "a:b"})));
        for bad in ["", "user", "user:", "tenant:x", "group:x", "ann"] {
            assert_eq!(body(bad), None, "{bad}");
        }
    }
}
