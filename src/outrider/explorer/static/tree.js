// A draft tree as nested lists, which read aloud as they look.

export function tree(nodes, render) {
  const below = (parent) => {
    const list = document.createElement("ul");
    for (const [number, node] of nodes.entries()) {
      if (node.parent !== parent) continue;
      const item = document.createElement("li");
      item.append(render(node, number));
      const rest = below(number);
      if (rest.children.length) item.append(rest);
      list.append(item);
    }
    return list;
  };
  return below(-1);
}
