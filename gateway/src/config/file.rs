//! Parses a configuration file: TOML, with every setting and every mistake located by line and column.
use super::agent::agent_keys;
use super::channel::ChannelText;
use super::key::{SETTINGS, SettingKey, ValueKind};
use super::mistake::{ConfigMistake, SettingLocation};
use super::model::model_keys;
use super::nearest::{did_you_mean, nearest};
use super::raw::{EntryText, RawConfig};
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Section of the agents, with a table for each.
const AGENTS: &str = "agents";
/// Section of the upstreams of models, with a table for each.
const MODELS: &str = "models";
/// Section of the channels, with a table for each.
const CHANNELS: &str = "channels";

/// Parses a whole file into `raw`, whatever mistakes it has.
pub(super) fn read(path: &Path, text: &str, raw: &mut RawConfig) {
    ConfigFileParser { path, text, raw }.read();
}

/// The state of parsing a file.
struct ConfigFileParser<'a> {
    path: &'a Path,
    text: &'a str,
    raw: &'a mut RawConfig,
}

// === impl ConfigFileParser ===

impl ConfigFileParser<'_> {
    fn read(&mut self) {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            self.push_mistake(None, error.span().unwrap_or_default(), error.message());
        }
        for (name, value) in table.get_ref() {
            let at = name.span();
            let name = name.get_ref().as_ref();
            match value.get_ref().as_table() {
                Some(agents) if name == AGENTS => {
                    let entries = self.parse_entries(AGENTS, agents);
                    self.raw.agents.extend(entries);
                }
                Some(models) if name == MODELS => {
                    let entries = self.parse_entries(MODELS, models);
                    self.raw.models.extend(entries);
                }
                Some(channels) if name == CHANNELS => self.parse_channels(channels),
                Some(section) if sections().any(|known| known == name) => self.parse_section(name, section),
                None if [AGENTS, MODELS, CHANNELS].contains(&name) || sections().any(|known| known == name) => {
                    self.push_mistake(Some(name), value.span(), &format!("expected a section: [{name}]"));
                }
                Some(_) if SettingKey::from_name(name).is_none() => {
                    let what =
                        format!("unknown section{}", did_you_mean(name, sections().chain([AGENTS, MODELS, CHANNELS])));
                    self.push_mistake(Some(name), at, &what);
                }
                Some(_) | None => self.parse_setting(name, at, value),
            }
        }
    }

    fn parse_section(&mut self, section: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            self.parse_setting(&format!("{section}.{}", name.get_ref()), name.span(), value);
        }
    }

    fn parse_setting(&mut self, name: &str, at: Range<usize>, value: &Spanned<DeValue<'_>>) {
        let Some(key) = SettingKey::from_name(name) else {
            return self.push_mistake(Some(name), at, &format!("unknown key{}", suggestion(name)));
        };
        let location = self.place(value.span());
        match (key.setting().kind, value.get_ref()) {
            (ValueKind::Switch, DeValue::Boolean(flag)) => self.raw.settings.push((key, flag.to_string(), location)),
            (ValueKind::Switch, other) => {
                self.push_mistake(
                    Some(name),
                    value.span(),
                    &format!("expected true or false, not {}", type_name(other)),
                );
            }
            (ValueKind::List, DeValue::Array(_)) => match flag_text(value.get_ref()) {
                Some(text) => self.raw.settings.push((key, text, location)),
                None => self.push_mistake(Some(name), value.span(), "expected a list of strings"),
            },
            (ValueKind::Text | ValueKind::List | ValueKind::Size, DeValue::String(text)) => {
                self.raw.settings.push((key, text.to_string(), location));
            }
            (ValueKind::Text | ValueKind::List | ValueKind::Size, other) => {
                self.push_mistake(Some(name), value.span(), &format!("expected a string, not {}", type_name(other)));
            }
        }
    }

    /// Parses a section whose entries have a `url` each.
    fn parse_entries(&mut self, section: &str, table: &DeTable<'_>) -> Vec<EntryText> {
        let mut entries = Vec::new();
        for (id, value) in table {
            let location = self.place(id.span());
            let id = id.get_ref().to_string();
            let form = format!("[{section}.{id}] with a url");
            if let Some(pairs) = self.parse_table(&format!("{section}.{id}"), &form, value) {
                entries.push(EntryText::Table { id, location, pairs });
            }
        }
        entries
    }

    fn parse_channels(&mut self, channels: &DeTable<'_>) {
        for (name, value) in channels {
            let location = self.place(name.span());
            let name = name.get_ref().to_string();
            let full_name = format!("channels.{name}");
            if let Some(pairs) = self.parse_table(&full_name, &format!("[{full_name}]"), value) {
                self.raw.channels.push(ChannelText { name, location, pairs });
            }
        }
    }

    /// Returns the keys and values of a table, each with its place; `None` if the value is no table.
    fn parse_table(
        &mut self,
        full_name: &str,
        form: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<Vec<(String, String, SettingLocation)>> {
        let Some(table) = value.get_ref().as_table() else {
            let what = format!("expected a table {form}, not {}", type_name(value.get_ref()));
            self.push_mistake(Some(full_name), value.span(), &what);
            return None;
        };
        let mut pairs = Vec::new();
        for (name, value) in table {
            let name = name.get_ref().to_string();
            match flag_text(value.get_ref()) {
                Some(word) => pairs.push((name, word, self.place(value.span()))),
                None => {
                    let what = format!("expected one value or a list of strings, not {}", type_name(value.get_ref()));
                    self.push_mistake(Some(&format!("{full_name}.{name}")), value.span(), &what);
                }
            }
        }
        Some(pairs)
    }

    fn push_mistake(&mut self, key: Option<&str>, at: Range<usize>, what: &str) {
        let location = self.place(at);
        self.raw.mistakes.push(ConfigMistake { location, key: key.map(str::to_owned), message: what.to_owned() });
    }

    /// Returns the line and column of a byte offset.
    fn place(&self, at: Range<usize>) -> SettingLocation {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        SettingLocation::File { path: self.path.to_owned(), line, column }
    }
}

fn sections() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|setting| setting.section_and_name().0).filter(|section| !section.is_empty())
}

/// Returns a hint: a similar name, the same name in another section, or the note that a name is a key of an
/// agent.
fn suggestion(name: &str) -> String {
    let names = || SETTINGS.iter().map(|setting| setting.name);
    let last = name.rsplit('.').next().unwrap_or(name);
    let elsewhere = || SETTINGS.iter().find(|setting| setting.section_and_name().1 == last).map(|setting| setting.name);
    match nearest(name, names()).or_else(elsewhere) {
        Some(known) => format!("; did you mean {known:?}?"),
        None if agent_keys().any(|key| key == last) => format!("; {last:?} belongs in [agents.ID]"),
        None if model_keys().any(|key| key == last) => format!("; {last:?} belongs in [models.ID]"),
        None => String::new(),
    }
}

/// Returns a single value as a flag would have it, and a list of strings joined with `|`.
fn flag_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Boolean(flag) => Some(flag.to_string()),
        DeValue::Integer(number) => Some(number.as_str().to_owned()),
        DeValue::Array(list) => {
            let texts = list.iter().map(|item| item.get_ref().as_str());
            let texts = texts.map(|text| text.filter(|text| !text.contains('|')));
            texts.collect::<Option<Vec<&str>>>().filter(|texts| !texts.is_empty()).map(|texts| texts.join("|"))
        }
        DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Table(_) => None,
    }
}

/// Returns the type of a value, for messages.
fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Boolean(_) => "true or false",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
