package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// child is the process that TestKill kills: it does one thing again and again, in a given directory.
func child(what string, args []string) {
	ctx, dir := context.Background(), args[0]
	target := OpenDir(nil, dir+"/archive")
	go func() { // ends with the parent
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	var err error
	for n := 0; err == nil; n++ {
		switch what {
		case "save":
			err = childSave(ctx, target, dir)
		case "prune":
			if err = childSave(ctx, target, dir); err == nil {
				_, err = Prune(ctx, target, PruneOptions{Keep: 1, Now: time.Now().Add(time.Hour)})
			}
		case "restore":
			if err = moveAway(dir); err == nil {
				_, err = Restore(ctx, target, "", dir+"/new", RestoreOptions{})
			}
		default:
			err = fmt.Errorf("unknown child %q", what)
		}
		if n == 0 {
			fmt.Println("begun")
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// moveAway removes what the last restore made, so that at no moment only a part of it is there.
func moveAway(dir string) error {
	err := os.Rename(dir+"/new", dir+"/old")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir + "/old")
}

// childSave saves the table with other block sizes each time, so that each save has something to write.
func childSave(ctx context.Context, target Target, dir string) error {
	store, table, err := openTable(nil, dir+"/db")
	if err != nil {
		return err
	}
	s := smallSizes
	s.mean += 1 + int(time.Now().UnixNano()%1000)
	_, err = Save(ctx, table, target, SaveOptions{Partitions: 2, sizes: s})
	return errors.Join(err, store.Close())
}
