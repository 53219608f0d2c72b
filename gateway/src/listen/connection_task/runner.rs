//! Connections of tool runners: the admission of a runner, and the handler that carries messages between the runner and
//! the node's runner pool.
use super::super::close_reason::LinkCloseReason;
use super::super::link_transport::LinkTransport;
use super::ConnectionTask;
use super::service::{AdmittedService, ServiceHandler};
use crate::auth::AuthenticatedClient;
use crate::auth::service_grants::ServiceRole;
use crate::links::CloseReason;
use crate::tools::RunnerRegistration;
use turnway_core::time::Now;
use turnway_node::connection::ConnectionConfig;
use turnway_node::link::ServiceRefusal;
use turnway_node::runner::connection::{Input, RunnerConnection, RunnerProtocol};
use turnway_node::runner::pool::RunnerRefusal;
use turnway_wire::channel::hello::HelloRequest;
use turnway_wire::runner::{FromRunner, ToRunner};

/// The gateway's side of a tool runner's connection.
pub(super) struct RunnerHandler {
    registration: RunnerRegistration,
}

// === impl ConnectionTask ===

impl<W: LinkTransport> ConnectionTask<'_, W> {
    /// Registers a tool runner, if its credential may serve as this runner.
    pub(super) fn admit_runner(&mut self, hello: &HelloRequest, admitted: AuthenticatedClient) {
        let tools = &self.context.tools;
        let entered = hello.runner.as_deref().ok_or(ServiceRefusal::Forbidden).and_then(|runner| {
            let identity = admitted.service_identity(ServiceRole::Runner(runner), tools.served_by());
            let entered = tools.register(runner.clone(), identity.ok_or(ServiceRefusal::Forbidden)?);
            entered.map_err(|why| match why {
                RunnerRefusal::IdInUse => ServiceRefusal::IdInUse,
                RunnerRefusal::LimitReached => ServiceRefusal::LimitReached,
            })
        });
        let service = entered.map(|registration| AdmittedService::Runner(RunnerHandler { registration }));
        self.finish_admission("tool runner", admitted, service);
    }
}

// === impl RunnerHandler ===

impl ServiceHandler for RunnerHandler {
    type Protocol = RunnerProtocol;
    type Wakeup = Option<ToRunner>;

    fn open(&self, now: Now, config: &ConnectionConfig) -> RunnerConnection {
        RunnerConnection::new(now, config)
    }

    async fn next_wakeup(&mut self) -> Option<ToRunner> {
        self.registration.next_message().await
    }

    fn handle_wakeup(
        &mut self,
        _: &RunnerConnection,
        message: Option<ToRunner>,
    ) -> Result<Option<Input>, LinkCloseReason> {
        let message = message.ok_or(LinkCloseReason::from(CloseReason::SlowConsumer))?;
        Ok(Some(Input::Command(Box::new(message))))
    }

    /// Waits while the switchboard is busy.
    async fn take_event(&mut self, message: Box<FromRunner>) {
        self.registration.handle_message(*message).await;
    }
}
