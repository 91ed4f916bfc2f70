//! Rules broken on purpose.
