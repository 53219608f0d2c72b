//! Catches panics that a test expects, without output on stderr. Panics of other threads are printed as usual.
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a closure on this thread; a panic is returned, and neither its message nor a backtrace is printed.
pub fn catch<T>(run: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                told(panic);
            }
        }));
    });
    let was_quiet = IS_QUIET.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    IS_QUIET.set(was_quiet);
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caught_panic_is_returned_and_silencing_ends() {
        let inner = || catch(|| panic!("inner")).map_err(|why| why.downcast_ref::<&str>().copied());
        let outer = catch(|| (inner(), IS_QUIET.get()));
        assert_eq!(outer.expect("no panic of its own"), (Err::<(), _>(Some("inner")), true));
        assert!(!IS_QUIET.get());
    }
}
