package engine

import (
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sortedRanges are the functions of pure rooms that range over a map, and why its order does not show.
var sortedRanges = map[string]string{
	"appendSpec":  "collects the names and sorts them",
	"headerLines": "collects the names and sorts them",
	"SpecBytes":   "adds lengths up",
}

// TestMapOrder checks the pure rooms for the one thing that makes two replicas differ and that imports do not
// show: the order of a map.
func TestMapOrder(t *testing.T) {
	used := make(map[string]bool)
	for _, dir := range []string{"wheel", "engine/schedule", "engine"} {
		fset := token.NewFileSet()
		files := parse(t, fset, filepath.Join("..", dir))
		info := &types.Info{Types: make(map[ast.Expr]types.TypeAndValue), Uses: make(map[*ast.Ident]types.Object)}
		config := types.Config{Importer: exported(t, fset)}
		if _, err := config.Check(dir, fset, files, info); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			for _, decl := range f.Decls {
				name := ""
				if fn, ok := decl.(*ast.FuncDecl); ok {
					name = fn.Name.Name
				}
				sorted := make(map[*ast.Ident]bool) // maps.Keys and the like inside of slices.Sorted
				ast.Inspect(decl, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.CallExpr:
						if id := function(n.Fun); id != nil && isOf(info, id, "slices", "Sorted", "SortedFunc") {
							if inner, ok := n.Args[0].(*ast.CallExpr); ok && function(inner.Fun) != nil {
								sorted[function(inner.Fun)] = true
							}
						}
					case *ast.RangeStmt:
						if _, ok := info.Types[n.X].Type.Underlying().(*types.Map); !ok {
							break
						}
						if sortedRanges[name] == "" {
							t.Errorf("%s: %s ranges over a map: its order is chance; sort the keys", fset.Position(n.Pos()), name)
						}
						used[name] = true
					case *ast.Ident:
						if isOf(info, n, "maps", "Keys", "Values", "All") && !sorted[n] {
							t.Errorf("%s: maps.%s: its order is chance; slices.Sorted gives it one", fset.Position(n.Pos()), n.Name)
						}
					}
					return true
				})
			}
		}
	}
	for name := range sortedRanges {
		if !used[name] {
			t.Errorf("%s ranges over no map any more", name)
		}
	}
}

// exported reads the types of imported packages from the compiler's export data.
func exported(t *testing.T, fset *token.FileSet) types.Importer {
	t.Helper()
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", ".", "./schedule", "../wheel").Output()
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
}

// isOf tells whether an identifier is one of the functions of a package.
func isOf(info *types.Info, id *ast.Ident, pkg string, names ...string) bool {
	f, ok := info.Uses[id].(*types.Func)
	return ok && f.Signature().Recv() == nil && f.Pkg() != nil && f.Pkg().Path() == pkg && slices.Contains(names, f.Name())
}

// function is the name of the function that a call calls, without its package.
func function(e ast.Expr) *ast.Ident {
	switch e := e.(type) {
	case *ast.Ident:
		return e
	case *ast.SelectorExpr:
		return e.Sel
	}
	return nil
}

// TestSameEverywhere keeps the pure rooms the same on every system.
func TestSameEverywhere(t *testing.T) {
	for _, dir := range []string{"wheel", "engine/schedule", "engine"} {
		p, err := build.ImportDir(filepath.Join("..", dir), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range append(p.IgnoredGoFiles, p.CgoFiles...) {
			if !strings.HasSuffix(name, "_test.go") {
				t.Errorf("%s/%s is for some systems only", dir, name)
			}
		}
	}
}

func parse(t *testing.T, fset *token.FileSet, dir string) []*ast.File {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, filepath.Join(dir, e.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}
