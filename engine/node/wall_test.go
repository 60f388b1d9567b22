package node

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// SetWall makes this process read another clock as the machine's.
func SetWall(read func() time.Time) { wall = read }

// TestWallClock checks that only clock.go reads the machine's clock: everywhere else a present time is only compared with
// another one, by the monotonic clock.
func TestWallClock(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || name == "clock.go" {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		present := make(map[string]bool) // variables that hold a present time
		ast.Inspect(file, func(n ast.Node) bool {
			if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
				for i := range a.Rhs {
					if v, ok := a.Lhs[i].(*ast.Ident); ok && callOf(a.Rhs[i], "time.Now") {
						present[v.Name] = true
					}
				}
			}
			return true
		})
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				if n.Name == "wall" {
					t.Errorf("%s reads the machine's clock", set.Position(n.Pos()))
				}
			case *ast.SelectorExpr:
				v, named := n.X.(*ast.Ident)
				if strings.HasPrefix(n.Sel.Name, "Unix") && (callOf(n.X, "time.Now") || named && present[v.Name]) {
					t.Errorf("%s reads the machine's clock by time.Now", set.Position(n.Pos()))
				}
			case *ast.CallExpr:
				if callOf(n, "time.Since", "time.Until") && callOf(n.Args[0], "time.Unix", "time.UnixMilli") {
					t.Errorf("%s reads the machine's clock by the difference to a time that is not monotonic", set.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// callOf tells whether an expression calls one of some functions of a package.
func callOf(e ast.Expr, names ...string) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := f.X.(*ast.Ident)
	for _, name := range names {
		if ok && pkg.Name+"."+f.Sel.Name == name {
			return true
		}
	}
	return false
}
