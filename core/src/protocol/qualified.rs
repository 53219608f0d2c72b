//! Rewrites the names in JSON between the bare forms used inside and the qualified forms used by agents and tool
//! runners. In the tenant `default` both forms are the same and nothing is parsed or rewritten. All other values pass
//! unchanged, byte for byte.
use crate::id::{QualifiedAction, QualifiedRun, QualifiedSession, RunId, SessionKey};
use crate::protocol::message_action::CHANGE_TOOLS;
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use std::fmt;

/// Prefix of the tools whose arguments and results name processes, and of the facts and events about processes.
const PROCESS: &str = "process.";
/// The field with a process's id, in arguments, results and facts.
const PROCESS_ID: &str = "process_id";
/// The field with the list of processes in the result of `process.status`.
const RUNNING: &str = "running";

/// A JSON object whose values stay unparsed, with its members in their order.
struct JsonMembers(Vec<(String, Box<RawValue>)>);

/// Rewrites the names in a fact's envelope to their qualified forms.
pub fn qualify_event(key: &SessionKey, json: String) -> String {
    rewrite_object(key, json, |members| {
        members.replace_string("session_id", |_| Some(QualifiedSession::from(key).to_string()));
        for name in ["run_id", "correlation_id"] {
            members.replace_string(name, |id| qualified_run(key, id));
        }
        // The id of the fact that requests an action is the action's id.
        for name in ["id", "causation_id"] {
            members.replace_string(name, |id| qualified_action(key, id));
        }
        let is_process = members.string_member("type").is_some_and(|kind| kind.starts_with(PROCESS));
        members.rewrite_object_member("data", |data| {
            let names_process = ["tool", "name"].map(|name| data.string_member(name));
            let names_process = names_process.iter().flatten().any(|name| name.starts_with(PROCESS));
            qualify_fact(key, data, is_process || names_process);
        });
    })
}

/// Rewrites the names in `context` of an order to their qualified forms.
pub fn qualify_context(key: &SessionKey, json: String) -> String {
    rewrite_object(key, json, |members| {
        members.rewrite_object_member("handover", |handover| qualify_fact(key, handover, false));
        for name in ["open_actions", "ended_actions"] {
            members.rewrite_list_member(name, |action| {
                let names_process = action.string_member("tool").is_some_and(|tool| tool.starts_with(PROCESS));
                qualify_fact(key, action, names_process);
            });
        }
    })
}

/// Rewrites the process ids in the arguments, or in a result, of this tool to their qualified forms.
pub fn qualify_processes(key: &SessionKey, tool: &str, json: String) -> String {
    if !tool.starts_with(PROCESS) {
        return json;
    }
    rewrite_object(key, json, |members| members.rewrite_process_ids(&|id| qualified_action(key, id)))
}

/// Rewrites the process ids in the arguments, or in a result, of this tool to their bare forms. An id of another
/// session stays unchanged: no process of this session has it.
pub fn unqualify_processes(key: &SessionKey, tool: &str, json: String) -> String {
    if !tool.starts_with(PROCESS) {
        return json;
    }
    rewrite_object(key, json, |members| members.rewrite_process_ids(&|id| bare_action(key, id)))
}

/// Rewrites the run that the arguments of a tool which changes messages name to its bare form. A run of another session
/// stays unchanged: it has no message of this session.
pub fn unqualify_changed_run(key: &SessionKey, tool: &str, json: String) -> String {
    if !CHANGE_TOOLS.contains(&tool) {
        return json;
    }
    rewrite_object(key, json, |members| members.replace_string("run_id", |id| bare_run(key, id)))
}

/// Rewrites a JSON object. Any other JSON stays unchanged.
fn rewrite_object(key: &SessionKey, json: String, rewrite: impl FnOnce(&mut JsonMembers)) -> String {
    if key.tenant.is_default() {
        return json;
    }
    let Ok(mut members) = serde_json::from_str::<JsonMembers>(&json) else { return json };
    rewrite(&mut members);
    serde_json::to_string(&members).unwrap_or(json)
}

/// Rewrites the members of a fact, or of an action in a context, that name objects of the session.
fn qualify_fact(key: &SessionKey, members: &mut JsonMembers, names_process: bool) {
    for name in ["run_id", "host_run_id", "replaces"] {
        members.replace_string(name, |id| qualified_run(key, id));
    }
    for name in ["action_id", "handover_id", PROCESS_ID] {
        members.replace_string(name, |id| qualified_action(key, id));
    }
    if names_process {
        for name in ["args", "result", "data"] {
            members.rewrite_object_member(name, |content| content.rewrite_process_ids(&|id| qualified_action(key, id)));
        }
    }
}

fn qualified_run(key: &SessionKey, id: &str) -> Option<String> {
    let run_id = RunId::parse(id).ok().filter(|run_id| run_id.session() == key.session)?;
    Some(QualifiedRun::of(key, &run_id).to_string())
}

fn bare_run(key: &SessionKey, id: &str) -> Option<String> {
    let (tenant, run_id) = QualifiedRun::parse(id).ok()?;
    tenant.is_none_or(|tenant| tenant == key.tenant).then(|| run_id.to_string())
}

fn qualified_action(key: &SessionKey, id: &str) -> Option<String> {
    let action = QualifiedAction::parse(id).ok().filter(|action| action.may_belong_to(key))?;
    Some(QualifiedAction::of(key, action.id).to_string())
}

fn bare_action(key: &SessionKey, id: &str) -> Option<String> {
    let action = QualifiedAction::parse(id).ok().filter(|action| action.may_belong_to(key))?;
    Some(action.id.to_string())
}

// === impl JsonMembers ===

impl JsonMembers {
    fn get(&mut self, name: &str) -> Option<&mut Box<RawValue>> {
        self.0.iter_mut().find(|(member, _)| member == name).map(|(_, value)| value)
    }

    /// Returns a member that is a string.
    fn string_member(&mut self, name: &str) -> Option<String> {
        self.get(name).and_then(|value| serde_json::from_str(value.get()).ok())
    }

    /// Replaces the text of a member that is a string, if `write` returns a new text.
    fn replace_string(&mut self, name: &str, write: impl FnOnce(&str) -> Option<String>) {
        let written = self.string_member(name).and_then(|text| write(&text)).and_then(|text| to_raw_value(&text).ok());
        if let (Some(value), Some(written)) = (self.get(name), written) {
            *value = written;
        }
    }

    /// Rewrites a member that is an object.
    fn rewrite_object_member(&mut self, name: &str, rewrite: impl FnOnce(&mut Self)) {
        let Some(value) = self.get(name) else { return };
        let Ok(mut members) = serde_json::from_str::<Self>(value.get()) else { return };
        rewrite(&mut members);
        if let Ok(written) = to_raw_value(&members) {
            *value = written;
        }
    }

    /// Rewrites each object of a member that is a list of objects.
    fn rewrite_list_member(&mut self, name: &str, mut rewrite: impl FnMut(&mut Self)) {
        let Some(value) = self.get(name) else { return };
        let Ok(mut list) = serde_json::from_str::<Vec<Self>>(value.get()) else { return };
        list.iter_mut().for_each(&mut rewrite);
        if let Ok(written) = to_raw_value(&list) {
            *value = written;
        }
    }

    /// Rewrites the process ids where arguments and results of `process.*` have them.
    fn rewrite_process_ids(&mut self, write: &dyn Fn(&str) -> Option<String>) {
        self.replace_string(PROCESS_ID, write);
        self.rewrite_list_member(RUNNING, |process| process.replace_string(PROCESS_ID, write));
    }
}

impl Serialize for JsonMembers {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for JsonMembers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct JsonMembersVisitor;
        impl<'de> Visitor<'de> for JsonMembersVisitor {
            type Value = JsonMembers;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonMembers, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(JsonMembers(members))
            }
        }
        from.deserialize_map(JsonMembersVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{MessageId, SessionId, TenantId, UserId};

    const ID: &str = "0190f4a0-0000-7000-8000-000000000001";

    fn key(tenant: &str) -> SessionKey {
        let session = SessionId::parse("s1").expect("a session");
        SessionKey { tenant: TenantId::parse(tenant).expect("a tenant"), session }
    }

    /// Replaces `$RUN` and `$ID` by the bare forms, and `@RUN`, `@ID` and `@S` by the forms of this tenant.
    fn filled(key: &SessionKey, json: &str) -> String {
        let run_id = RunId::derive(key, &UserId::local(), &MessageId::parse("m1").expect("a name"));
        let names = [
            ("$RUN", run_id.to_string()),
            ("$ID", ID.to_owned()),
            ("@RUN", QualifiedRun::of(key, &run_id).to_string()),
            ("@ID", qualified_action(key, ID).expect("an id")),
            ("@S", QualifiedSession::from(key).to_string()),
        ];
        names.iter().fold(json.to_owned(), |json, (mark, name)| json.replace(mark, name))
    }

    fn check(rewrite: impl Fn(&SessionKey, String) -> String, before: &str, after: &str) {
        let default = key("default");
        let acme = key("acme");
        assert_eq!(rewrite(&default, filled(&default, before)), filled(&default, before));
        assert_eq!(rewrite(&acme, filled(&acme, before)), filled(&acme, after));
    }

    #[test]
    fn ids_in_facts_are_qualified_and_values_unchanged() {
        check(
            qualify_event,
            r#"{"session_id":"s1","seq":1e400,"id":"$ID","correlation_id":"$RUN","run_id":"$RUN","type":"tool.result","data":{"action_id":"$ID","tool":"search","result":{"process_id":"$ID","n":12345678901234567890123}}}"#,
            r#"{"session_id":"@S","seq":1e400,"id":"@ID","correlation_id":"@RUN","run_id":"@RUN","type":"tool.result","data":{"action_id":"@ID","tool":"search","result":{"process_id":"$ID","n":12345678901234567890123}}}"#,
        );
        check(
            qualify_event,
            r#"{"type":"tool.result","data":{"action_id":"$ID","tool":"process.status","result":{"running":[{"process_id":"$ID"}]}}}"#,
            r#"{"type":"tool.result","data":{"action_id":"@ID","tool":"process.status","result":{"running":[{"process_id":"@ID"}]}}}"#,
        );
        check(
            qualify_event,
            r#"{"type":"process.spawned","data":{"action_id":"$ID","process_id":"$ID","data":{"process_id":"no id"}}}"#,
            r#"{"type":"process.spawned","data":{"action_id":"@ID","process_id":"@ID","data":{"process_id":"no id"}}}"#,
        );
        check(qualify_event, r#"{"run_id":"other.x","data":[]}"#, r#"{"run_id":"other.x","data":[]}"#);
        check(qualify_event, "[1]", "[1]");
    }

    #[test]
    fn ids_in_contexts_are_qualified() {
        check(
            qualify_context,
            r#"{"user_id":"$RUN","handover":{"handover_id":"$ID","run_id":"$RUN"},"open_actions":[{"action_id":"$ID","run_id":"$RUN","tool":"t","process_id":"$ID"}],"ended_actions":[{"action_id":"$ID","tool":"process.kill","result":{"process_id":"$ID"}}]}"#,
            r#"{"user_id":"$RUN","handover":{"handover_id":"@ID","run_id":"@RUN"},"open_actions":[{"action_id":"@ID","run_id":"@RUN","tool":"t","process_id":"@ID"}],"ended_actions":[{"action_id":"@ID","tool":"process.kill","result":{"process_id":"@ID"}}]}"#,
        );
    }

    #[test]
    fn run_of_a_changed_message_is_made_plain() {
        let back = |key: &SessionKey, json| unqualify_changed_run(key, "message.edit", json);
        check(back, r#"{"run_id":"@RUN","text":"@RUN"}"#, r#"{"run_id":"$RUN","text":"@RUN"}"#);
        check(back, r#"{"run_id":"$RUN"}"#, r#"{"run_id":"$RUN"}"#);
        check(back, r#"{"run_id":"evil~s1.x"}"#, r#"{"run_id":"evil~s1.x"}"#);
        check(|key, json| unqualify_changed_run(key, "search", json), r#"{"run_id":"@RUN"}"#, r#"{"run_id":"@RUN"}"#);
    }

    #[test]
    fn process_ids_convert_between_plain_and_qualified() {
        let out = |key: &SessionKey, json| qualify_processes(key, "process.kill", json);
        let back = |key: &SessionKey, json| unqualify_processes(key, "process.kill", json);
        check(out, r#"{"process_id":"$ID"}"#, r#"{"process_id":"@ID"}"#);
        check(out, r#"{"process_id":"@ID"}"#, r#"{"process_id":"@ID"}"#);
        check(back, r#"{"process_id":"@ID"}"#, r#"{"process_id":"$ID"}"#);
        check(back, r#"{"process_id":"$ID"}"#, r#"{"process_id":"$ID"}"#);
        let foreign = format!(r#"{{"process_id":"evil~s1.{ID}"}}"#);
        check(back, &foreign, &foreign);
        check(out, &foreign, &foreign);
        check(|key, json| qualify_processes(key, "search", json), r#"{"process_id":"$ID"}"#, r#"{"process_id":"$ID"}"#);
    }
}
