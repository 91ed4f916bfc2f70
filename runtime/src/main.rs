//! The `hypatia` command. All of it is in `cli`: one file a command.

mod cli;

/// The optimiser makes and drops small lists all the time: this allocator saves it a sixth of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
