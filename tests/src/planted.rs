//! Planted bugs of a running node and of the client, each with the one test that has to go red of it. What is wrong with each
//! stands where it is defined (`core/src/planted.rs`, `sdk/rust/src/planted.rs`); `./test planted` plants them.

/// A planted bug and what watches over it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The bug's name.
    pub bug: &'static str,
    /// What has to find it.
    pub watch: Watch,
}

/// What has to find a planted bug.
#[derive(Clone, Copy, Debug)]
pub enum Watch {
    /// A test: its file, or its crate where it lies beside the code, and its name in there.
    By(&'static str, &'static str),
    /// Nothing, for this reason.
    Nothing(&'static str),
}

/// Every planted bug.
pub const ROWS: &[Row] = &[
    by(
        "AddressBoundDoubled",
        "turnway",
        "listen::crowd::tests::so_many_from_one_address_and_who_leaves_makes_room",
    ),
    by(
        "AddressNeverReleased",
        "turnway",
        "listen::crowd::tests::so_many_from_one_address_and_who_leaves_makes_room",
    ),
    by(
        "WideNetsUncounted",
        "turnway",
        "listen::home::tests::an_address_is_counted_in_what_its_owner_may_have",
    ),
    by("LockoutDoubled", "turnway", "listen::lockout::tests::ten_in_a_minute_are_too_many_for_five"),
    by("LockoutTableUnbounded", "turnway", "listen::lockout::tests::it_remembers_so_many_addresses"),
    by("QuicLockoutUnchecked", "quic", "life::bad_credentials_lock_their_address_out"),
    by("HttpGuessUncounted", "floods", "guesses::who_tries_one_key_after_the_other_is_not_heard_for_a_while"),
    by("RenewalGuessUncounted", "identity", "tokens::only_the_same_user_is_refreshed"),
    by("CrowdedPlaceLost", "floods", "addresses::one_address_has_so_many_connections"),
    by("QuicPlaceLost", "quic", "life::addresses_are_counted_with_those_of_other_roads"),
    by(
        "ConnectionShareKept",
        "turnway",
        "links::tests::links_over_a_users_share_are_refused_until_one_leaves",
    ),
    by("QuicSharesTcpPool", "quic", "life::addresses_are_counted_with_those_of_other_roads"),
    by("HttpShareUncounted", "shares", "a_key_with_many_slow_turns_leaves_places_for_others"),
    by("MailboxWeightKept", "turnway", "links::tests::a_full_mailbox_is_emptied_and_closed"),
    by("StalledSocketKept", "turnway", "listen::patience::tests::a_peer_that_takes_nothing_is_given_up"),
    by("FragmentsDoubled", "large_messages", "a_message_in_too_many_pieces_ends_its_connection"),
    by("BadMessagesDoubled", "bad_input", "ten_bad_messages_are_enough"),
    by("WaitingUnbounded", "link", "what_is_sent_meanwhile_is_done_after_welcome"),
    by("CreditTwice", "link", "lives::no_weight_is_lost_or_reported_twice"),
    by("TokenGraceDoubled", "turnway_bindings", "link::expiry::tests::expiry_follows_a_clock_that_steps"),
    by("SubscriptionsKept", "shares", "a_key_with_many_slow_turns_leaves_places_for_others"),
    by("AsksKept", "steering", "three_messages_in_a_row_change_one_long_task"),
    by("ContentKept", "shares", "a_key_with_many_slow_turns_leaves_places_for_others"),
    by("SessionShareKept", "shares", "a_key_with_many_slow_turns_leaves_places_for_others"),
    by("AttemptPlaceKept", "shares", "a_key_with_many_slow_turns_leaves_places_for_others"),
    by("QuotaOfTheAsker", "shares", "over_a_quota_inputs_are_refused_until_sessions_are_deleted"),
    by("QuotaForgottenAtStart", "shares", "over_a_quota_inputs_are_refused_until_sessions_are_deleted"),
    by("QuotaKeptAtDeletion", "shares", "over_a_quota_inputs_are_refused_until_sessions_are_deleted"),
    by("QuotaOfEverySnapshot", "shares", "over_a_quota_inputs_are_refused_until_sessions_are_deleted"),
    by("DiskReserveUsed", "embedded_store", "a_full_disk_refuses_inputs_and_nothing_else"),
    by("TenantRateByKey", "turnway", "rates::tests::connections_of_one_tenant_share_what_it_may"),
    by("RatesNeverForgotten", "turnway", "rates::tests::a_credential_has_its_rate_wherever_it_is_used"),
    by("RefreshUnlimited", "identity", "tokens::only_the_same_user_is_refreshed"),
    by(
        "RateWaitRoundedDown",
        "turnway",
        "rates::tests::what_is_asked_too_often_is_told_when_to_ask_again_and_starves_no_cancel",
    ),
    by(
        "CancelTakesWork",
        "turnway",
        "rates::tests::what_is_asked_too_often_is_told_when_to_ask_again_and_starves_no_cancel",
    ),
    by("RedisRateOneLane", "identity", "shared_rates::a_key_has_one_rate_at_all_nodes_together"),
    by(
        "RedisTrustsNewServer",
        "turnway",
        "store::redis::book::tests::what_was_written_is_not_leaned_on_after_a_new_era_or_connection",
    ),
    by("RedisLeftNeverCleared", "redis_store", "sweep::indexes_come_back_to_nothing"),
    by("RedisDeadListenersKept", "differential", "redis_answers_like_its_model"),
    by(
        "BusOutboxBytesKept",
        "turnway",
        "bus::redis::outbox::tests::what_there_is_no_room_for_is_lost_and_counted",
    ),
    by("BusInboxBytesKept", "bus", "a_node_that_cannot_keep_up_is_told_what_it_missed"),
    by("RollKeepsTheGone", "bus", "nodes_know_of_each_other_until_they_leave"),
    by("HeirsMayBeDead", "bus", "nodes_know_of_each_other_until_they_leave"),
    by("LuaInboxBytesKept", "differential", "redis_answers_like_its_model"),
    by("LuaInboxBytesUncounted", "differential", "redis_answers_like_its_model"),
    by("LuaInboxOneMore", "differential", "redis_answers_like_its_model"),
    by("LuaControlUnbounded", "differential", "redis_answers_like_its_model"),
    by("LuaListenersDoubled", "differential", "redis_answers_like_its_model"),
    by("LuaUnlistenUnstamped", "differential", "redis_answers_like_its_model"),
    by("LuaLeaseKeyKept", "redis_store", "sweep::indexes_come_back_to_nothing"),
    by("LuaDeletionKeepsLog", "differential", "redis_answers_like_its_model"),
    by("LuaExpiresEarly", "differential", "redis_answers_like_its_model"),
    by("LuaTrimsPastSnapshot", "differential", "redis_answers_like_its_model"),
    by("LuaFindForeign", "differential", "redis_answers_like_its_model"),
    by("LuaUnregisterUnstamped", "redis_store", "race::whatever_is_asked_at_the_same_time_is_found"),
    by("LuaPutAnyVersion", "differential", "redis_answers_like_its_model"),
    by("LuaListsDeleted", "differential", "redis_answers_like_its_model"),
    by("LuaReadsWithoutRoom", "differential", "redis_answers_like_its_model"),
    by("LuaOweForgets", "identity", "shared_rates::a_key_has_one_rate_at_all_nodes_together"),
    by("LuaRateKeyKept", "identity", "shared_rates::a_key_has_one_rate_at_all_nodes_together"),
    by("LuaAcceptUnregistered", "redis_store", "race::whatever_is_asked_at_the_same_time_is_found"),
    by("MarkOnEveryStretch", "agents", "resume::an_events_name_comes_with_the_last_of_it"),
    by("UnsavedTextUnbounded", "agents", "limits::an_agent_is_read_only_as_far_as_its_text_is_kept"),
    by("AliveNotReported", "agents", "talk::whatever_an_agent_sends_is_a_sign_of_life"),
    by("NewsWithRunKey", "tools", "an_agent_behind_http_is_told_of_what_it_has_asked_for"),
    by("SteerWithRunKey", "agents", "steer::an_agent_is_told_more_and_answers_with_a_receipt"),
    by("AgentBodyUnbounded", "agents", "limits::an_endless_body_is_cut_off"),
    by(
        "AgentEventDoubled",
        "turnway",
        "agent::budget::tests::an_event_has_a_budget_however_it_is_cut_and_ended",
    ),
    by("AgentRetryAfterIgnored", "agents", "trouble::retry_after_of_an_error_is_kept"),
    by(
        "AgentRetryAfterUncapped",
        "turnway",
        "agent::retry_after::tests::retry_after_is_read_as_seconds_or_date",
    ),
    by("ResumedNotCancelled", "agents", "resume::who_outlives_the_connection_is_told_to_stop"),
    by("RunTokenKept", "turnway", "agent::token::tests::a_token_speaks_for_its_run_until_it_is_dropped"),
    by(
        "AnsweredAskedAgain",
        "turnway",
        "agent::traffic::tests::request_is_stale_only_on_a_kept_connection_without_answer",
    ),
    by("KeepAliveNotHeeded", "agents", "stale::connection_announced_to_close_is_not_kept"),
    by("IllAgentIsBack", "agents", "trouble::an_agent_that_is_not_there_is_unavailable_until_it_is_back"),
    by("DialinRunsKept", "dialin", "life::another_connection_takes_over_from_one_that_is_lost"),
    by("DialinTenantTakesAll", "dialin", "rights::connections_of_one_tenant_leave_room_for_others"),
    by("DialinGaugeKept", "dialin", "beyond::operators_are_told_where_an_agent_is"),
    by("DialinReachIgnored", "dialin", "rights::agent_of_one_tenant_gets_no_run_of_another"),
    by("DialinBadForgiven", "dialin_machine", "what_is_no_message_is_answered_until_there_is_too_much_of_it"),
    by("DialinBodyUncounted", "dialin", "slow::too_much_text_ends_the_turn_alone"),
    by(
        "RunnerTenantTakesAll",
        "turnway_bindings",
        "runner::shop::tests::runners_of_one_tenant_leave_room_for_others",
    ),
    by(
        "RunnerReachIgnored",
        "turnway_bindings",
        "runner::shop::tests::action_goes_to_a_runner_that_serves_its_tenant",
    ),
    by("OutputGapHidden", "tools", "what_an_agent_asks_for_is_done_once_and_everybody_is_told"),
    by("CorsExposesNothing", "http_edges", "listed_pages_may_read_answers_and_nobody_else"),
    by("CorsVaryMissing", "http_edges", "listed_pages_may_read_answers_and_nobody_else"),
    by("RetryAfterHeaderMissing", "turnway", "http::problem::tests::a_wait_is_told_in_whole_seconds"),
    by("HttpBodyDoubled", "http_problems", "every_mistake_is_a_problem_with_a_code"),
    by("LastEventIdWithoutEpoch", "http_reads", "facts_come_in_pages_and_as_they_happen"),
    by("HttpPageUnbounded", "http_reads", "facts_come_in_pages_and_as_they_happen"),
    by("HttpCreditKept", "http_turns", "a_client_that_does_not_read_costs_no_memory_and_holds_up_nobody"),
    by(
        "StreamOutlivesToken",
        "identity",
        "tokens::a_connection_dies_with_its_token_unless_it_shows_the_next",
    ),
    by("HangUpNotCancelled", "openai", "hanging_up_ends_what_nobody_can_come_back_for"),
    by("LongCallPlaceLost", "openai", "hanging_up_ends_what_nobody_can_come_back_for"),
    by("DrainTakesTurns", "http_turns", "a_node_that_leaves_says_so_and_lets_turns_end"),
    by("EndedKeyStays", "identity", "keys::a_key_that_is_over_closes_what_it_opened"),
    by(
        "CallNamesWithoutUser",
        "turnway",
        "keys::call_names::tests::nodes_of_one_store_name_a_call_alike_and_others_do_not",
    ),
    by(
        "ProviderKeysKept",
        "turnway",
        "keys::provider::tests::next_fetch_waits_as_asked_while_the_keys_are_good",
    ),
    by(
        "ProviderAskedByAnyone",
        "turnway",
        "door::tokens::tests::an_unknown_key_is_asked_for_and_not_again_within_thirty_seconds",
    ),
    by("LinkGaugeKept", "serve", "what_passes_is_counted_and_content_is_not_logged"),
    by("StoreWaitingKept", "turnway", "metrics::store::tests::ops_are_counted_under_their_names"),
    by("PostCountedAsOther", "turnway", "metrics::http::tests::each_request_is_counted_in_its_place"),
    by("StoreStaysAway", "fleet", "away::a_redis_that_is_away_costs_nothing_but_time"),
    by("NeverUnlistened", "simulation", "holds_under_faults"),
    by("TrimsFirstFact", "retention", "a_trimmed_history_answers_with_a_reset"),
    by("SdkBackoffUncapped", "turnway_client", "backoff::tests::waits_double_to_a_ceiling_and_differ"),
    by(
        "SdkFailuresKept",
        "turnway_client",
        "state::tests::reconnect::waits_grow_and_a_good_connection_forgives",
    ),
    by(
        "SdkRetryAfterIgnored",
        "turnway_client",
        "state::tests::requests::what_passes_is_asked_again_in_its_place",
    ),
    by("SdkRetriesForEver", "turnway_client", "state::tests::requests::the_budget_of_a_request_ends"),
    by("SdkRepairsForEver", "turnway_client", "state::tests::text_that_cannot_be_had_is_given_up"),
    by("SdkResumesWithoutEpoch", "turnway_client", "state::tests::text_is_resumed_at_every_byte"),
    by(
        "SdkInputsUnbounded",
        "turnway_client",
        "state::tests::requests::what_is_too_large_or_too_many_never_leaves",
    ),
    by(
        "SdkBookmarkForgetsInputs",
        "turnway_client",
        "state::tests::a_bookmark_carries_everything_to_another_process",
    ),
    by(
        "SdkCancelRepeated",
        "turnway_client",
        "state::tests::requests::a_named_cancel_is_repeated_until_its_run_has_ended",
    ),
    by("SdkTextUnbounded", "turnway_client", "text::tests::text_is_bounded_and_cut_at_a_boundary"),
    by(
        "SdkHelloOverfull",
        "turnway_client",
        "state::tests::reconnect::what_does_not_fit_into_hello_is_subscribed_to_afterwards",
    ),
    by("SdkHurriesBack", "turnway_client", "state::tests::reconnect::close_codes"),
    by("SdkLeavesAtOnce", "turnway_client", "state::tests::reconnect::go_away_is_obeyed_within_its_time"),
    by(
        "SdkTokenStale",
        "turnway_client",
        "state::tests::reconnect::a_token_is_refreshed_on_this_connection_and_on_those_that_follow",
    ),
    by("SdkEndsUnbounded", "turnway_client", "state::tests::repeats_are_dropped"),
];

const fn by(bug: &'static str, suite: &'static str, test: &'static str) -> Row {
    Row { bug, watch: Watch::By(suite, test) }
}

const fn nothing(bug: &'static str, why: &'static str) -> Row {
    Row { bug, watch: Watch::Nothing(why) }
}

// === impl Watch ===

impl Watch {
    /// Why nothing watches.
    pub fn reason(self) -> &'static str {
        match self {
            Self::By(..) => "",
            Self::Nothing(why) => why,
        }
    }
}
