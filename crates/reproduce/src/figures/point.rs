//! The points of a figure: a value of a series at a position on the horizontal axis.

/// A position on the horizontal axis of a panel.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AxisPosition {
    /// The text that the axis shows at the position.
    pub label: String,
    /// The coordinate: on a linear axis, distances are proportional to differences of it.
    pub number: f64,
}

impl AxisPosition {
    /// The position of a number, labelled with the number itself.
    pub fn number(number: f64) -> Self {
        Self { label: number.to_string(), number }
    }

    /// The position of the `index`th group of bars, labelled with a name.
    pub fn named(index: usize, label: impl Into<String>) -> Self {
        Self { label: label.into(), number: index as f64 }
    }
}

/// A point of a series.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Point {
    /// The series that the point belongs to, usually an engine's name.
    pub series: String,
    /// The point's position on the horizontal axis.
    pub place: AxisPosition,
    /// The value, in the unit of the panel's vertical axis.
    pub value: f64,
    /// How far the value may be off, as a part of it; None where it was not measured more than
    /// once. [`rounds`](super::rounds) says how it is estimated. A prediction's reaches to the
    /// farther end of its band.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
}

impl Point {
    /// A point of `series` at `place`, of unknown spread.
    pub fn new(series: impl Into<String>, place: AxisPosition, value: f64) -> Self {
        Self { series: series.into(), place, value, spread: None }
    }
}
