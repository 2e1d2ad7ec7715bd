//! Tables and properties of the four modules.
