//! `turnway serve`: its flags, made from the table of settings. They stay text here, so that one place
//! tells all mistakes at once.
use crate::config::key::{Fallback, Kind, Setting};
use crate::config::{Flag, SETTINGS};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, value_parser};
use std::path::PathBuf;

/// How to run a node.
#[derive(Clone, Debug, Default)]
pub struct ServeArgs {
    /// The configuration file, where one is named.
    pub config: Option<PathBuf>,
    /// What the flags set, as it was written.
    pub flags: Vec<(Flag, String)>,
}

const AFTER: &str = "Flags overrule the environment (TURNWAY_<SECTION>_<KEY>), and that the file. `turnway \
                     default-config` prints a whole file, `turnway config-doc` the page about it.";

// === impl ServeArgs ===

impl Args for ServeArgs {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .env("TURNWAY_CONFIG")
            .value_parser(value_parser!(PathBuf))
            .help("Configuration file [default: ./turnway.toml, if there is one]");
        let agent = Arg::new("agent")
            .long("agent")
            .value_name("ID=URL[,key=value…]")
            .action(ArgAction::Append)
            .help("An agent; may be repeated");
        // Those of the table are collected even where they are given twice: that is told with the other
        // mistakes.
        let flags = SETTINGS.iter().filter_map(|setting| Some(flag(setting, setting.flag?)));
        command.arg(config).args(flags).arg(agent).after_help(AFTER)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ServeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut args = Self { config: matches.get_one::<PathBuf>("config").cloned(), flags: Vec::new() };
        let given = |name| matches.get_many::<String>(name).unwrap_or_default().cloned();
        for setting in SETTINGS.iter().filter(|setting| setting.flag.is_some()) {
            args.flags.extend(given(setting.name).map(|text| (Flag::Key(setting.key), text)));
        }
        args.flags.extend(given("agent").map(|text| (Flag::Agent, text)));
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A setting as a flag.
fn flag(setting: &'static Setting, name: &'static str) -> Arg {
    let default = match setting.default {
        Fallback::Fixed(value) => value,
        Fallback::Found { how, .. } => how,
    };
    let first = setting.doc.split(". ").next().unwrap_or_default();
    let told = |doc: &str| format!("{} [default: {default}]", doc.trim_end_matches('.').replace('`', ""));
    let arg = Arg::new(setting.name).long(name.trim_start_matches('-')).action(ArgAction::Append);
    let arg = arg.help(told(first)).long_help(told(setting.doc));
    match setting.kind {
        // Alone it means yes.
        Kind::Switch => {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name(setting.form)
        }
        Kind::Text | Kind::List | Kind::Size => arg.value_name(setting.form),
    }
}
