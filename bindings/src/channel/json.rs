//! The JSON of `turnway.v1`: parse and render.
