//! Detects this machine's vector instructions, and compiles loops once for each set of them.
//!
//! Invariant: [`dispatch!`] functions give the same bits on every set, since Rust never contracts a
//! multiplication and an addition into one rounding; only the matrix kernels, which request FMA,
//! differ.

/// A set of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// 512-bit vectors with masks.
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// The baseline of the target.
    Portable,
}

#[cfg(test)]
thread_local! {
    static LIMIT: std::cell::Cell<u8> = const { std::cell::Cell::new(0) };
}

/// Tests only: limits this thread to that set from now on.
#[cfg(test)]
pub fn limit(isa: Isa) {
    LIMIT.set(isa as u8);
}

/// The best set of this machine.
pub fn isa() -> Isa {
    #[cfg(target_arch = "x86_64")]
    {
        #[cfg(test)]
        let limit = LIMIT.get();
        #[cfg(not(test))]
        let limit = 0;
        macro_rules! has {
            ($($feature:tt),*) => { $(std::arch::is_x86_feature_detected!($feature))&&* };
        }
        let avx2 = has!("avx2", "fma", "f16c");
        if limit == 0 && avx2 && has!("avx512f", "avx512bw", "avx512dq", "avx512vl") {
            return Isa::Avx512;
        }
        if limit <= 1 && avx2 {
            return Isa::Avx2;
        }
    }
    Isa::Portable
}

/// Defines a function whose body is compiled for each set; the best one runs. Callees must be
/// `#[inline(always)]` to be compiled with it.
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                use $crate::simd::{Isa, isa};
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn avx512($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                match isa() {
                    // SAFETY: `isa` has asked the processor for exactly these features.
                    Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    Isa::Portable => {}
                }
            }
            body($($arg),*)
        }
    };
}
pub(crate) use dispatch;
