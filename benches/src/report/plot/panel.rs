//! Draws curves in a frame with two axes, as SVG.
use std::fmt::Write;

/// Width of the whole picture.
pub(super) const WIDTH: f64 = 960.0;
/// Height of one panel, including its titles.
pub(super) const HEIGHT: f64 = 280.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 24.0;
/// Space above the frame, for the title and the legend.
const SPACE_ABOVE: f64 = 48.0;
/// Space below the frame, for tick labels and the axis title.
const SPACE_BELOW: f64 = 52.0;
/// Colours that people with colour blindness can tell apart, too.
const CURVE_COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#6c4ab6", "#444444"];
/// Approximate width of a character.
const CHAR_WIDTH: f64 = 7.4;
const TICKS: f64 = 5.0;

/// A frame with two axes and its curves.
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) curves: Vec<Curve>,
}

/// The range, title and ticks of an axis.
pub(super) struct Axis {
    pub(super) title: &'static str,
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) ticks: Vec<(f64, String)>,
}

/// Points in ascending order of x, in the units of the axes.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

// === impl Axis ===

impl Axis {
    /// Creates an axis from 0 to at least `to`, with round ticks.
    pub(super) fn linear(title: &'static str, to: f64, name: impl Fn(f64) -> String) -> Self {
        let step = round_step(to / TICKS);
        let to = (to / step).ceil().max(1.0) * step;
        let ticks = std::iter::successors(Some(0.0), |at| (at + step <= to + step / 2.0).then_some(at + step));
        let ticks = ticks.map(|at| (at, name((at * 1e6).round() / 1e6))).collect();
        Self { title, from: 0.0, to, ticks }
    }

    /// Returns the relative position of a value, from 0 to 1.
    fn position(&self, value: f64) -> f64 {
        ((value - self.from) / (self.to - self.from).max(1e-9)).clamp(0.0, 1.0)
    }
}

/// Returns the next step of 1, 2, 5, 10, …
fn round_step(least: f64) -> f64 {
    let decade = 10_f64.powf(least.max(1e-6).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * decade).find(|step| *step >= least).unwrap_or(decade)
}

// === impl Curve ===

impl Curve {
    pub(super) fn new(name: String, points: Vec<(f64, f64)>) -> Self {
        Self { name, points }
    }
}

// === impl Panel ===

impl Panel {
    /// Returns the panel if any curve has more than one point.
    pub(super) fn unless_empty(self) -> Option<Self> {
        self.curves.iter().any(|curve| curve.points.len() > 1).then_some(self)
    }

    /// Renders the panel with its upper edge at `top`.
    pub(super) fn draw(&self, top: f64) -> String {
        let mut text = String::new();
        let low = top + HEIGHT - SPACE_BELOW;
        let high = top + SPACE_ABOVE;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"{}\" font-size=\"15\">{}</text>", top + 18.0, self.title);
        self.draw_x(&mut text, low, high);
        self.draw_y(&mut text, low, high);
        let mut beside = LEFT;
        for (curve, colour) in self.curves.iter().zip(CURVE_COLOURS.iter().cycle()) {
            let width = 30.0 + CHAR_WIDTH * f64::from(u32::try_from(curve.name.chars().count()).unwrap_or(0));
            let _ = writeln!(
                text,
                "<line x1=\"{beside:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" \
                 stroke-width=\"3\"/><text x=\"{:.1}\" y=\"{:.1}\" font-size=\"12\">{}</text>",
                beside + 16.0,
                beside + 21.0,
                high - 10.0,
                escape(&curve.name),
                y = high - 14.0,
            );
            beside += width;
            let points: Vec<String> = curve.points.iter().map(|point| self.place(*point, low, high)).collect();
            let _ = writeln!(
                text,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
                 stroke-linejoin=\"round\"/>",
                points.join(" ")
            );
        }
        text
    }

    fn place(&self, (x, y): (f64, f64), low: f64, high: f64) -> String {
        let across = LEFT + self.x.position(x) * (WIDTH - LEFT - RIGHT);
        format!("{across:.1},{:.1}", low - self.y.position(y) * (low - high))
    }

    fn draw_x(&self, text: &mut String, low: f64, high: f64) {
        for (at, name) in self.x.ticks.iter().filter(|(at, _)| *at <= self.x.to) {
            let x = LEFT + self.x.position(*at) * (WIDTH - LEFT - RIGHT);
            let _ = writeln!(
                text,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{high}\" y2=\"{low}\" stroke=\"#e4e4e4\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                low + 18.0,
                escape(name)
            );
        }
        let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2.0;
        let _ = writeln!(
            text,
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">{}</text>",
            low + 37.0,
            self.x.title
        );
    }

    fn draw_y(&self, text: &mut String, low: f64, high: f64) {
        for (at, name) in &self.y.ticks {
            let y = low - self.y.position(*at) * (low - high);
            let _ = writeln!(
                text,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e4e4e4\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.5,
                escape(name)
            );
        }
        let middle = f64::midpoint(low, high);
        let _ = writeln!(
            text,
            "<text x=\"22\" y=\"{middle}\" text-anchor=\"middle\" fill=\"#666\" \
             transform=\"rotate(-90 22 {middle})\">{}</text>",
            self.y.title
        );
        let _ = writeln!(text, "<path d=\"M{LEFT} {high}V{low}H{}\" fill=\"none\" stroke=\"#888\"/>", WIDTH - RIGHT);
    }
}

/// Escapes text for SVG.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_end() {
        let axis = Axis::linear("x", 47.0, |n| format!("{n}"));
        let names: Vec<&str> = axis.ticks.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["0", "10", "20", "30", "40", "50"]);
        let axis = Axis::linear("x", 0.9, |n| format!("{n}"));
        assert!(axis.to >= 0.9 && axis.ticks.len() <= 7, "{:?}", axis.ticks);
    }
}
