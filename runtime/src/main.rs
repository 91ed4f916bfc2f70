//! The `hypatia` command. All of it is in `cli`: one file a command.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
