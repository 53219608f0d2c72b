//! Authentication and authorisation. [`keys`], [`tokens`], [`forgeries`]: credentials; [`matrix`]: foreign
//! sessions; [`public_node`]: public nodes; [`rates`], [`shared_rates`]: rate limits; [`run_tokens`]: what
//! agents show; [`sealed`], [`slow_store`]: keys over a changed or slow store.
mod forgeries;
mod keys;
mod matrix;
mod public_node;
mod rates;
mod run_tokens;
mod sealed;
mod shared_rates;
mod slow_store;
mod tokens;
