// The error codes of docs/protocol.md in words for a person. A test compares the table with the node's codes.

const WORDS: { [code: string]: string } = {
  poison_turn: "Each node that worked on this message was lost, so the gateway gave it up.",
  agent_timeout: "The agent took too long.",
  session_closed: "The conversation is closed.",
  busy: "Another answer is still being written.",
  unauthorized: "The gateway does not accept the key.",
  forbidden: "Your key does not allow this.",
  not_found: "The gateway does not know this conversation, agent or message.",
  invalid_message: "The gateway did not understand the message.",
  too_large: "The message is too large.",
  rate_limited: "Too many messages in a short time.",
  over_share: "You use your whole share of this node.",
  quota_exceeded: "The quota of stored data is used up.",
  too_many_pending: "Too many messages of this conversation wait.",
  idempotency_conflict: "Another message with this id was sent before.",
  not_applied: "The conversation was changed meanwhile.",
  no_destination: "There is no place to send the text to.",
  adapter_unavailable: "The chat platform is not connected.",
  placement_unsupported: "The chat platform cannot make such a conversation.",
  agent_not_in_session: "The agent is not part of this conversation.",
  agent_unavailable: "The agent could not be reached.",
  ROUTE_TIMEOUT: "The agent did not take the message in time.",
  CANCEL_TIMEOUT: "The agent did not confirm the stop in time; the answer is stopped.",
  client_offline: "No device of yours offers the tool.",
  tool_timeout: "A tool took too long.",
  approval_timeout: "Nobody decided in time.",
  approval_rejected: "The approval was refused.",
  blocked: "A rule of the gateway forbids this.",
  agent_error: "The agent reported an error.",
  llm_error: "The model reported an error.",
  owner_lost: "The node that worked on this message was lost, and the agent must not be asked twice.",
  store_unavailable: "The gateway's store does not answer.",
  store_damaged: "The stored conversation is damaged; an operator has to repair it.",
  draining: "This node is being shut down.",
  fleet_upgrading: "The gateway is being upgraded.",
  internal_error: "The gateway has an error of its own.",
  ADD_AGENT_FAILED: "The agent could not be added.",
  REMOVE_AGENT_FAILED: "The agent could not be removed.",
  SESSION_OPEN_FAILED: "The conversation could not be opened.",
  SESSION_CLOSE_FAILED: "The conversation could not be closed.",
  runner_id_in_use: "Another tool runner has this id.",
  bot_id_in_use: "Another account acts as this bot.",
};

/** Returns the failure of a request for a file in words; some statuses say more about a file than their code. */
export function httpInWords(status: number, code: string): string {
  switch (status) {
    case 0:
      return "There was no answer.";
    case 404:
      return "The conversation or the file does not exist.";
    case 408:
      return "The upload took too long.";
    case 413:
      return "The file is too large.";
    case 415:
      return "The gateway does not take files of this type.";
    default:
      return inWords(code);
  }
}

/** Returns a code in words; an unknown code, of a later release, is still an error. */
export function inWords(code: string): string {
  return WORDS[code] ?? "The gateway reported an error.";
}
