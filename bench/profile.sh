#!/bin/sh
# Takes the profile that the program is compiled with, where an engine's CPU goes under load: about seven minutes (make profile).
set -eu
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
program=$scratch/carillon
engine=
trap 'test -z "$engine" || kill "$engine"; rm -rf "$scratch"' EXIT

profile() {
	"$program" serve --json --data "$scratch/data" --listen 127.0.0.1:0 --http 127.0.0.1:0 --pprof \
		--out-max-bytes -1 --log-max-bytes -1 >"$scratch/ready" 2>"$scratch/log" &
	engine=$!
	until grep -q http "$scratch/ready"; do
		kill -0 "$engine" || { cat "$scratch/log"; exit 1; }
		sleep 0.1
	done
	nats=$(sed 's/.*"nats":"\([^"]*\)".*/\1/' "$scratch/ready")
	http=$(sed 's/.*"http":"\([^"]*\)".*/\1/' "$scratch/ready")
	go tool pprof -proto -output "$scratch/$1.prof" "$http/debug/pprof/profile?seconds=60" &
	taken=$!
	"$program" bench "$@" --server "$nats" || test $? -eq 1 # a target may be missed
	wait "$taken"
	kill "$engine"
	wait "$engine"
	engine=
	rm -rf "$scratch/data"
}

go build -trimpath -o "$program" ./cmd/carillon # the profile names files
profile lateness --rate 10000 --duration 20s
profile burst --jobs 500000
profile commands --rounds 1
profile dispatch --pairs 1
go tool pprof -proto -output cmd/carillon/default.pgo "$scratch"/*.prof
