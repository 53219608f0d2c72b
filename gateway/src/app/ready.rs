//! The startup messages of a node: one line for programs, then some for people. Called by `app::run`.
use crate::agent::directory::{AgentSpec, BuiltinAgent, Endpoint};
use crate::cli::plan::NodePlan;
use crate::cli::write_stdout;
use std::net::SocketAddr;
use turnway_core::id::NodeId;

/// The addresses of a node, with the ports actually bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) http: SocketAddr,
    pub(super) quic: Option<SocketAddr>,
    pub(super) admin: SocketAddr,
}

/// Prints the first line on stdout; the process that started the node may wait for it.
pub(super) fn announce(plan: &NodePlan, durability: &str, node: NodeId, at: Addresses) {
    let Addresses { http, quic, admin } = at;
    let quic = quic.map_or_else(|| "off".to_owned(), |quic| quic.to_string());
    // A closed stdout is no reason to exit.
    let _ = write_stdout(&format!("turnway ready http={http} quic={quic} admin={admin} node={node}\n"));
    if plan.config.demo {
        let _ = write_stdout(&demo(plan, at));
    }
    if plan.agents.is_empty() {
        tracing::warn!("no agents are configured; add some with --agent ID=URL or --demo");
    }
    tracing::info!(%http, %quic, %admin, %node, name = plan.config.node_name, durability, "turnway is serving");
}

fn demo(plan: &NodePlan, Addresses { http, quic, admin }: Addresses) -> String {
    let agents: Vec<&str> = plan.agents.iter().map(|spec| spec.id.as_str()).collect();
    // The program name as typed: it need not be on `PATH`.
    let scheme = if plan.config.tls.is_some() { "wss" } else { "ws" };
    let program = std::env::args().next().unwrap_or_else(|| "turnway".to_owned());
    let quic = quic.map(|quic| format!("QUIC       quic://{quic}\n  ")).unwrap_or_default();
    // An operator's own agent may have the name of a demo agent; then that demo agent does not exist.
    let counts =
        |spec: &&AgentSpec| spec.policy.auto_joins && spec.endpoint == Endpoint::Builtin(BuiltinAgent::Counter);
    let counter = plan.agents.iter().find(counts);
    let is_assistant = |spec: &&AgentSpec| spec.policy.auto_joins && matches!(spec.endpoint, Endpoint::Model(_));
    let assistant = plan.agents.iter().find(is_assistant);
    let ask = assistant.map(|spec| format!("\n{:18}@{} what did I say?", "", spec.id)).unwrap_or_default();
    let count = counter.map(|spec| format!("\n{:18}@{} count to 20 every 500ms", "", spec.id)).unwrap_or_default();
    // Settings that a client needs besides the address.
    let trust = if plan.config.tls.is_some() { "SSL_CERT_FILE=its-ca.pem " } else { "" };
    let key = if plan.config.auth.mode.takes_keys() { "TURNWAY_API_KEY=twk_… " } else { "" };
    let page = if plan.config.tls.is_some() { "https" } else { "http" };
    // No browser opens the address that stands for all addresses.
    let at = if http.ip().is_unspecified() { format!("localhost:{}", http.port()) } else { http.to_string() };
    format!(
        "\n  Web chat   {page}://{at}/chat/   open this in a browser\n\n  \
           WebSocket  {scheme}://{http}/v1/connect\n  \
           {quic}\
           Operators  http://{admin}/readyz  http://{admin}/metrics\n  \
           Agents     {}\n\n  \
           Talk to it:     {trust}{key}{program} chat --url {scheme}://{http}\n  \
           In the chat:    hello{count}{ask}\n  \
           {gap:16}/agents lists agents, /help shows all commands\n  \
           Check health:   curl http://{admin}/readyz\n\n",
        agents.join(", "),
        gap = "",
    )
}
