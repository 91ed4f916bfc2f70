//! Why rules fired, or did not.
